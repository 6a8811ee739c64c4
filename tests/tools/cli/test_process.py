"""What the program does to its own process: threads, memory, and the words of libraries."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ppdiffusers_tome.cpu.process import usable_cores
from ppdiffusers_tome.tools.cli.console.process import prepare_process
from tools.cli.conftest import heard

SETTINGS = ("OMP_NUM_THREADS", "MKL_DEBUG_CPU_TYPE", "GLOG_minloglevel", "PADDLE_LOCAL_SIZE")
# Prints what the environment says and whether memory is kept, when Paddle is imported.
SHOW = """
import os, sys
from ppdiffusers_tome.cpu import process as cpu
from ppdiffusers_tome.tools.cli import commands
from ppdiffusers_tome.tools.cli import program as cli
doctor = commands.commands()["doctor"]
def show(args):
    print(os.environ.get("OMP_NUM_THREADS"), os.environ.get("GLOG_minloglevel"), cpu.keeps_freed_memory())
doctor.run = show
sys.exit(cli.main(["doctor", *sys.argv[1:]]))
"""


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=True, env={**inherited, **environment}
    )


def test_all_cores_are_used_and_that_is_said_once() -> None:
    done, cores = run("-c", SHOW), usable_cores()
    assert done.stdout.split()[:2] == [str(cores), "2"]
    said = f"using {cores} threads, one per core; OMP_NUM_THREADS sets another number\n"
    assert done.stderr == (said if cores > 1 else "")


def test_what_the_user_says_counts() -> None:
    done = run("-c", SHOW, OMP_NUM_THREADS="3", GLOG_minloglevel="0")
    assert done.stdout.split()[:2] == ["3", "0"]
    assert done.stderr == ""


def test_ranks_share_the_cores() -> None:
    done = run("-c", SHOW, PADDLE_LOCAL_SIZE=str(2 * usable_cores()))
    assert done.stdout.split()[0] == "1"
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_freed_memory_is_kept_unless_the_user_says_otherwise() -> None:
    kept = [run("-c", SHOW, *more).stdout.split()[2] for more in ((), ("--no-keep-memory",))]
    assert kept == ["True", "False"]


def test_a_process_that_has_paddle_already_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    importlib.import_module("paddle")
    prepare_process(keep_memory=True)
    assert not set(SETTINGS) & set(os.environ)


SAY = """
from pathlib import Path
from ppdiffusers_tome.tools.files import prepare_folder
from ppdiffusers_tome.tools.cli import commands
from ppdiffusers_tome.tools.cli import program as cli
doctor = commands.commands()["doctor"]
def say(args):
    print("一只猫.png")
    prepare_folder(Path("."), ["一只猫.png"], overwrite=True)
doctor.run = say
cli.program()
"""


def test_letters_that_a_terminal_or_a_file_system_lacks_are_no_traceback() -> None:
    ascii_only = dict(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", OMP_NUM_THREADS="1")
    environment = {**os.environ, **ascii_only}
    program = SAY.encode("ascii", "backslashreplace").decode()
    done = subprocess.run([sys.executable, "-c", program, "doctor"], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (2, "\\u4e00\\u53ea\\u732b.png\n")
    (line,) = done.stderr.splitlines()
    assert "cannot be the name of a file here, as names are in ascii; set the environment variable LC_ALL" in line


@pytest.mark.parametrize(
    "command", [("generate", "--steps", "1"), pytest.param(("export",), marks=pytest.mark.sweep)], ids=" ".join
)
def test_libraries_say_nothing(command: tuple[str, ...], tmp_path: Path) -> None:
    more = ("--prompt", "a photo of a cat") if command[0] == "generate" else ()
    size = ("--height", "64", "--width", "64", "--output", str(tmp_path / "out"))
    done = run("-m", "ppdiffusers_tome", *command, *more, *size, OMP_NUM_THREADS="2")
    assert heard(done.stderr) == []

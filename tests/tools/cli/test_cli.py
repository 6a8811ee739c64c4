"""The program itself: help, commands found by their folder, exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import ppdiffusers_tome.tools.cli.commands.generate
from launching import python_path
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.cli import commands
from ppdiffusers_tome.tools.cli import program as cli
from ppdiffusers_tome.tools.cli.console import interrupts
from ppdiffusers_tome.tools.cli.program import main
from tools.cli.conftest import PROMPT, SMALL, heard

ROOT = Path(__file__).parents[3]
SLOW_MODULES = {
    "paddle", "ppdiffusers", "paddlenlp", "cv2", "skimage", "PIL", "scipy", "numpy", "matplotlib", "rich", "tqdm",
    "gradio",
}  # fmt: skip
COMMANDS = tuple(commands.commands())
ANSWERED_AT_ONCE = [
    ["--help"],
    ["--version"],
    [],
    ["generte"],
    *([name, "--help"] for name in COMMANDS),
    *([name, "--promt", "x"] for name in COMMANDS),
    *([name, "--scheduler", "ddmi"] for name in COMMANDS),
]


def test_commands_are_those_of_the_folder():
    files = Path(commands.__file__).parent.glob("*.py")
    assert {path.stem for path in files} - {"__init__"} == set(COMMANDS)
    assert {"generate", "compare"} <= set(COMMANDS)


@pytest.mark.parametrize("arguments", ANSWERED_AT_ONCE, ids=" ".join)
def test_parsing_imports_nothing_slow(arguments):
    code = (
        "import sys; from ppdiffusers_tome.tools.cli.program import main; main(sys.argv[1:]); "
        f"print('SLOW', *sorted({SLOW_MODULES!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "SLOW"


def test_help_waits_for_no_framework():
    """It answers at once: what takes seconds to import is imported by what needs it."""
    code = (
        "import sys; from ppdiffusers_tome.tools.cli.program import main\n"
        "try: main(['generate', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'matplotlib', 'paddle', 'paddlenlp', 'ppdiffusers', 'scipy', 'skimage'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--prompt" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ppdiffusers-tome {ppdiffusers_tome.__version__}\n"


DRAWING = ("--prompt", "--model", "--controlnet", "--image", "--steps", "--seed", "--sx", "--output")
ARGUMENTS = {
    "generate": DRAWING, "compare": DRAWING, "bench": ("--channels", "--ratio", "--repeats", "--output"),
    "doctor": ("--model", "--height", "--ratio", "--tile", "--markdown"),
    "visualize": (*DRAWING, "--ratio", "--ratios", "--at", "--blocks", "--visualdl"),
    "play": ("--host", "--port", "--language", "--model", "--controlnet", "--dtype", "--chunked-attention"),
    "tune": ("--model", "--prompt", "--target-psnr", "--target-speedup", "--max-memory", "--output"),
    "evaluate": ("--prompts", "--seeds", "--ratios", "--port-ratios", "--configs", "--suite", "--clip", "--output"),
    "export": ("--model", "--controlnet", "--height", "--rows", "--ratio", "--onnx", "--tolerance", "--output"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_command_names_its_arguments(name, capsys):
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    for option in ARGUMENTS[name]:
        assert option in shown


def test_mistyped_argument_is_answered_with_the_right_one(capsys):
    assert main(["generate", "--promt", "x"]) == 2
    assert "did you mean --prompt?" in capsys.readouterr().err


def test_new_command_is_one_new_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "say_hello.py").write_text(
        "HELP = 'Say hello.'\n"
        "def add_arguments(parser): parser.add_argument('--name')\n"
        "def run(args): print('hello', args.name)\n"
    )
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    assert main(["say-hello", "--name", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"
    sys.modules.pop("ppdiffusers_tome.tools.cli.commands.say_hello")


def interrupt():
    signal.raise_signal(signal.SIGINT)


def interrupt_in_a_callback():
    """Python drops what is raised there, prints a traceback, and goes on."""
    thing = type("Thing", (), {})()
    reference = weakref.ref(thing, lambda _: interrupt())
    del thing
    assert reference() is None
    for _ in range(1000):
        time.sleep(0.01)


def interrupt_that_becomes(error):
    try:
        interrupt()
    except KeyboardInterrupt:
        raise error from None


@pytest.fixture
def heard_interrupts():
    """Interrupts arrive, also where the tests run in the background of a shell, which has them ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard_interrupts")
@pytest.mark.parametrize(
    "how",
    [
        interrupt, interrupt_in_a_callback, partial(interrupt_that_becomes, RuntimeError("something failed")),
        partial(interrupt_that_becomes, UserError("the model could not be loaded")),
    ],
    ids=["plain", "in a callback", "another error", "an error of ours"],
)  # fmt: skip
def test_interrupt_ends_with_130_and_no_traceback(how, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("ppdiffusers_tome.tools.generation.sampling.generate_image", lambda *_, **__: how())
    before = signal.getsignal(signal.SIGINT), sys.unraisablehook
    assert main(["generate", *SMALL, "--prompt", PROMPT, "--output", str(tmp_path / "outputs")]) == 130
    assert heard(capsys.readouterr().err) == ["ppdiffusers-tome: interrupted"]
    assert list((tmp_path / "outputs").iterdir()) == []
    assert (signal.getsignal(signal.SIGINT), sys.unraisablehook) == before


@pytest.mark.usefixtures("heard_interrupts")
class TestInterruptsOfACommand:
    """``generate`` stands for all; what it does is put in its place."""

    @pytest.fixture
    def ends_with(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., int]:
        def ends(command: Callable[[object], None]) -> int:
            monkeypatch.setattr(ppdiffusers_tome.tools.cli.commands.generate, "run", command)
            before = signal.getsignal(signal.SIGINT), sys.unraisablehook
            code = main(["generate", "--prompt", PROMPT])
            assert (signal.getsignal(signal.SIGINT), sys.unraisablehook) == before
            assert capsys.readouterr().err == ("ppdiffusers-tome: interrupted\n" if code == 130 else "")
            return code

        return ends

    def test_one_that_a_library_has_swallowed_is_told(self, ends_with) -> None:
        def swallow(args: object) -> None:
            with suppress(KeyboardInterrupt):
                interrupt()

        assert ends_with(swallow) == 130

    def test_a_second_one_does_not_cut_off_what_tidies_up(self, ends_with) -> None:
        tidied = []

        def work(args: object) -> None:
            try:
                interrupt()
            finally:
                interrupt()
                tidied.append(True)

        assert ends_with(work) == 130
        assert tidied

    def test_a_later_one_ends_what_goes_on(self, ends_with, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(interrupts, "_CLEANUP_SECONDS", 0.01)
        ended = []

        def work(args: object) -> None:
            with suppress(KeyboardInterrupt):
                interrupt()
            time.sleep(0.02)
            try:
                interrupt()
            except KeyboardInterrupt:
                ended.append(True)
                raise

        assert ends_with(work) == 130
        assert ended

    def test_one_that_comes_while_an_error_is_told(self, ends_with, monkeypatch: pytest.MonkeyPatch) -> None:
        def work(args: object) -> None:
            monkeypatch.setattr(cli, "print", tell, raising=False)
            raise UserError("something")

        def tell(*words: object, **keywords: object) -> None:
            monkeypatch.undo()
            interrupt()

        assert ends_with(work) == 130


ENDING = """
import time
from ppdiffusers_tome.tools.cli import program as cli
def end(code):
    print(code, flush=True)
    time.sleep(30)
cli.main, cli.exit_process = lambda: 0, end
cli.program()
"""


@pytest.mark.once
def test_an_interrupt_while_the_process_ends_is_no_traceback() -> None:
    """All is written by then, and only libraries are taken apart."""
    process = subprocess.Popen(
        [sys.executable, "-c", ENDING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=20)[1]
    finally:
        process.kill()
    assert (process.returncode, said) == (-signal.SIGINT, "")


def test_an_interrupt_that_is_ignored_stays_so(monkeypatch, tmp_path):
    """As for a program in the background of a shell."""
    monkeypatch.setattr(ppdiffusers_tome.tools.cli.commands.generate, "run", lambda args: interrupt())
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert main(["generate", "--prompt", PROMPT]) == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


WORK = {
    "bench": ["overhead", "--repeats", "100"],
    "doctor": [],
    "export": ["--height", "64", "--width", "64"],
    "generate": ["--prompt", PROMPT, "--steps", "100"],
}


@pytest.mark.sweep
@pytest.mark.parametrize("seconds", [1, 6, 12, 24])
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_at_any_time_is_one_line(name, seconds, tmp_path):
    output = [] if name == "doctor" else ["--output", str(tmp_path / "out")]
    done = subprocess.Popen(
        [sys.executable, "-m", "ppdiffusers_tome", name, *WORK.get(name, ["--steps", "100"]), *output],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(ROOT)}, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        time.sleep(seconds)
        if done.poll() is None:
            os.killpg(done.pid, signal.SIGINT)  # as a terminal does
        said = done.communicate(timeout=120)[1]
    finally:
        done.kill()
    if done.returncode != 0:  # doctor may have done its work by then
        assert done.returncode == 130
        assert [line for line in heard(said) if not line.startswith("warning: ")] == ["ppdiffusers-tome: interrupted"]
    else:
        assert name == "doctor"
    assert not list(tmp_path.rglob(".*"))  # no file is left half written


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["generate", "--prompt", PROMPT], "make images smaller, or give --chunked-attention"),
        (["generate", "--prompt", PROMPT, "--chunked-attention"], "make images smaller"),
        (["export"], "make images smaller"),
    ],
)
def test_memory_that_runs_out_is_one_line_and_advises_what_the_command_takes(arguments, remedy, monkeypatch, capsys):
    def work(args: object) -> None:
        raise MemoryError("all is taken")

    monkeypatch.setattr(commands.commands()[arguments[0]], "run", work)
    assert main(arguments) == 2
    assert capsys.readouterr().err == (
        f"ppdiffusers-tome: error: there is not enough memory (all is taken); {remedy}\n"
    )


def test_program_fault_is_not_hidden(monkeypatch, tmp_path):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("ppdiffusers_tome.tools.generation.sampling.generate_image", broken)
    with pytest.raises(ZeroDivisionError):
        main(["generate", *SMALL, "--prompt", PROMPT, "--output", str(tmp_path / "outputs")])

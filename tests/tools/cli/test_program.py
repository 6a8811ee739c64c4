"""The program: help without waiting, one-line errors, Ctrl-C, tables, and the settings of its process."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec

import ppdiffusers
import pytest

import ppdiffusers_tome
from ppdiffusers_tome.cpu import count_usable_cores
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.cli import commands
from ppdiffusers_tome.tools.cli.commands import generate
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.console import extras
from ppdiffusers_tome.tools.console.parsing import Parser
from ppdiffusers_tome.tools.console.tables import Page, Table
from ppdiffusers_tome.tools.console.tome_arguments import get_tome_overrides
from ppdiffusers_tome.tools.generation import loading
from ppdiffusers_tome.tools.generation.checks import parse_settings
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from ppdiffusers_tome.tools.generation.models import find_model
from ppdiffusers_tome.tools.measure.system import has_only_cpu
from tools.cli.conftest import PROMPT, SMALL, heard

SLOW = {"paddle", "ppdiffusers", "paddlenlp", "cv2", "skimage", "PIL", "scipy", "numpy", "matplotlib", "tqdm"}
COMMANDS = tuple(commands.commands())
GENERATE = ["generate", "--prompt", PROMPT]


def test_parsing_imports_nothing_slow():
    code = (
        "import sys; from ppdiffusers_tome.tools.cli.program import main\n"
        f"for name in {COMMANDS!r}: main([name, '--help'])\n"
        "main([]); main(['generte']); main(['generate', '--promt', 'x'])\n"
        f"print('SLOW', *({SLOW!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "SLOW"


@pytest.mark.skipif(not has_only_cpu(), reason="only of a Paddle for CPUs it is known before it is imported")
def test_what_no_cpu_has_is_refused_before_libraries_load(tmp_path):
    """Which takes many seconds. What loads is said before."""
    code = (
        "import sys; from ppdiffusers_tome.tools.cli.program import main; sys.modules['openvino'] = None\n"
        "for given in ('--dtype float16', '--xformers', '--compile --dtype bfloat16', '--compile'):\n"
        f"    assert main([*{GENERATE!r}, '--output', {str(tmp_path)!r}, *given.split()]) == 2\n"
        "assert 'paddle' not in sys.modules\n"
        f"main([*{GENERATE!r}, '--output', {str(tmp_path)!r}, '--model', 'nobody/nothing'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = [line.partition("error: ")[2] or line for line in done.stderr.splitlines() if not line.startswith("using ")]
    assert [line.split(": ")[0] for line in lines[:4]] == [
        "--dtype float16 needs a GPU", "--xformers needs a GPU",
        "--compile is for --dtype float32 on a CPU, and this is bfloat16 on cpu; omit it",
        "--compile needs openvino, which is not installed",
    ]  # fmt: skip
    assert lines[4:6] == ["loading Paddle and ppdiffusers ...", "loading nobody/nothing ..."]


def test_new_command_is_one_new_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "say_hello.py").write_text(
        "HELP = 'Say hello.'\n"
        "def add_arguments(parser): parser.add_argument('--name')\n"
        "def run(args): print('hello', args.name)\n"
    )
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    assert main(["say-hello", "--name", "you"]) == 0
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"hello you\nppdiffusers-tome {ppdiffusers_tome.__version__}\n"
    sys.modules.pop("ppdiffusers_tome.tools.cli.commands.say_hello")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_60_lines_and_lists_every_option(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([command, "--help"]) == 0
    text, parser = capsys.readouterr().out, Parser(prog="x")
    assert len(text.splitlines()) <= 60
    commands.commands()[command].add_arguments(parser)
    listed = text.replace("[no-]", "")
    assert not [action for action in parser._actions for name in action.option_strings[:1] if name not in listed]
    assert ("repeat it" in text, "next has N + 1" in text) == (
        command not in ("doctor", "visualize"), command in ("generate", "tune")
    )  # fmt: skip


def test_help_says_the_steps_and_guidance_of_the_small_models(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["generate", "--help"]) == 0
    text, default = capsys.readouterr().out, find_model("some/model")
    ((steps, guidance),) = {(model.steps, model.guidance_scale) for model in map(find_model, ("photographs", "dit"))}
    assert (find_model("emoji").steps, find_model("emoji").guidance_scale) == (default.steps, None)
    assert f"(default: {default.steps}; photographs, dit: {steps})" in text
    assert f"default: the pipeline's, mostly 7.5; photographs, dit: {guidance}" in text


@pytest.mark.parametrize(("kind", "guidance"), [("StableDiffusionPipeline", 7.5), ("StableDiffusionXLPipeline", 5.0)])
def test_guidance_is_the_default_of_the_pipeline(kind, guidance):
    parser = Parser(prog="x")
    generate.add_arguments(parser)
    settings = parse_settings(parser.parse_args(["--model", "emoji"]))
    pipe = object.__new__(getattr(ppdiffusers, kind))
    assert LoadedPipeline(pipe, settings).guidance_scale == guidance


def test_every_setting_is_an_option():
    parser = Parser(prog="x")
    generate.add_arguments(parser)
    given = (
        "--max-downsample none --sx 3 --sy 4 --no-rand --no-merge-attn --merge-crossattn --merge-mlp --tome-seed 5 "
        "--tile 16 --reuse-steps 2 --method keys --start 0.1 --end 0.9 --st 2 --cache 0.5"
    )
    overrides = get_tome_overrides(parser.parse_args(given.split()))
    assert overrides.keys() == {*vars(ToMeConfig())} - {"ratio"}
    assert (overrides["max_downsample"], overrides["seed"]) == (None, 5)
    assert get_tome_overrides(parser.parse_args([])) == {}


def test_missing_packages_are_named_with_their_extra_before_any_work(monkeypatch, capsys):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "tqdm" else find_spec(name))
    monkeypatch.setattr(generate, "run", lambda args: pytest.fail("work was started"))
    assert main(GENERATE) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith('pip install ".[cli]" in a clone of the repository')


def test_faults_show_and_missing_memory_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(generate, "run", lambda args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(GENERATE)

    def fail(args, reason="all is taken"):
        raise MemoryError(reason)

    gpu = "Out of memory error on GPU 0"
    for reason, remedy in ((gpu, "give --xformers"), ("all is taken", "on a CPU give --compile")):
        monkeypatch.setattr(generate, "run", partial(fail, reason=reason))
        assert main(GENERATE) == 2
        error = capsys.readouterr().err
        assert f"not enough memory ({reason}); make images smaller, or {remedy}" in error
    assert main([*GENERATE, "--compile"]) == 2
    assert capsys.readouterr().err.endswith("make images smaller\n"), "one or the other"
    with pytest.raises(MemoryError), loading._explain_faults("--model", find_model("emoji")):
        fail(None)  # has no other words while loading


def test_options_of_another_device_are_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("paddle.get_device", lambda: "gpu:0")
    assert main([*GENERATE, "--compile", "float32", "--output", str(tmp_path)]) == 2
    assert "--compile is for --dtype float32 on a CPU, and this is float32 on gpu:0" in capsys.readouterr().err


def test_table_in_markdown_and_aligned(capsys):
    table = Table(["settings", "seconds"], [["ours | tile 16", "0.0123 s"], ["x", "1 s"]])
    assert table.markdown().splitlines()[2:] == [r"| ours \| tile 16 | 0.0123 s |", "| x | 1 s |"]
    table.print()
    assert capsys.readouterr().out.splitlines() == [
        "settings         seconds", "ours | tile 16  0.0123 s", "x                    1 s"
    ]  # fmt: skip


def test_infinity_is_null_in_json_which_lacks_it(tmp_path):
    paths = [tmp_path / "page.md", tmp_path / "page.json"]
    Page("Title", ["a note"], []).write(paths, {"psnr": [30.5, math.inf, -math.inf]})
    assert json.loads(paths[1].read_text(), parse_constant=pytest.fail) == {"psnr": [30.5, None, None]}


# Prints what the environment says and whether memory is kept when a command runs.
SHOW = """
import os, sys, warnings
from ppdiffusers_tome import cpu
from ppdiffusers_tome.tools.cli import program
from ppdiffusers_tome.tools.cli.commands import generate
def show(args):
    warnings.warn("of two\\nlines")
    print(os.environ.get("OMP_NUM_THREADS"), os.environ.get("GLOG_minloglevel"), cpu.keeps_freed_memory())
    print("\\u4e00\\u53ea\\u732b.png")
generate.run = show
sys.argv[1:1] = ["generate"]
program.program()
"""


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    names = ("OMP_NUM_THREADS", "MKL_DEBUG_CPU_TYPE", "GLOG_minloglevel", "PADDLE_LOCAL_SIZE")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env={**inherited, **environment})


def test_process_uses_all_cores_and_keeps_memory_by_default():
    done, cores = run("-c", SHOW), count_usable_cores()
    assert done.stdout.splitlines()[0] == f"{cores} 2 True"
    assert done.stderr.endswith("warning: of two lines\n")
    # A terminal that lacks letters is no traceback.
    done = run("-c", SHOW, "--no-keep-memory", OMP_NUM_THREADS="3", GLOG_minloglevel="0", PYTHONIOENCODING="ascii")
    assert done.stdout.splitlines() == ["3 0 False", "\\u4e00\\u53ea\\u732b.png"]
    shared = {"PADDLE_LOCAL_SIZE": str(2 * cores)}  # ranks share the cores
    assert run("-c", SHOW, **shared).stdout.split()[0] == "1"
    shared["PADDLE_LOCAL_SIZE"] = "1"  # of Paddle's launcher, which sets the other variable to 1
    assert run("-c", SHOW, **shared, OMP_NUM_THREADS="1").stdout.split()[0] == str(cores)


def test_libraries_print_nothing(tmp_path):
    done = run("-m", "ppdiffusers_tome", *GENERATE, *SMALL, "--output", str(tmp_path / "out"), OMP_NUM_THREADS="2")
    assert (done.returncode, heard(done.stderr)) == (0, [])

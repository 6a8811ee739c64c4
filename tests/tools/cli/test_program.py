"""The program: help without waiting, one-line errors, Ctrl-C, tables, and the settings of its process."""

import re
import resource
import sys
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace

import ppdiffusers
import psutil
import pytest

import ppdiffusers_tome
from environment import python_path, run_python
from ppdiffusers_tome.machine import count_usable_cores
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.cli import commands
from ppdiffusers_tome.tools.cli.commands import generate
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.console import process
from ppdiffusers_tome.tools.console.tables import Table
from ppdiffusers_tome.tools.console.tome_arguments import get_tome_options
from ppdiffusers_tome.tools.generation import loading
from ppdiffusers_tome.tools.generation.checks import parse_settings
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from ppdiffusers_tome.tools.generation.models import find_model
from ppdiffusers_tome.tools.measure import memory
from ppdiffusers_tome.tools.measure.system import has_only_cpu
from tools.cli.helpers import PROMPT, SMALL, heard, make_parser

SLOW = {"paddle", "ppdiffusers", "paddlenlp", "cv2", "skimage", "PIL", "scipy", "numpy", "matplotlib", "tqdm"}
COMMANDS = tuple(commands.import_commands())
GENERATE = ["generate", "--prompt", PROMPT]


def test_parsing_imports_nothing_slow():
    code = (
        "import sys; from ppdiffusers_tome.tools.cli.program import main\n"
        f"for name in {COMMANDS!r}: main([name, '--help'])\n"
        "main([]); main(['generte']); main(['generate', '--promt', 'x'])\n"
        f"print('SLOW', *({SLOW!r} & set(sys.modules)))"
    )
    assert run_python("-c", code).stdout.splitlines()[-1] == "SLOW"


def test_what_no_cpu_has_is_refused_before_libraries_load_which_print_nothing(tmp_path):
    """Loading takes many seconds, and is said before. Of a Paddle for GPUs it is not known before it is imported."""
    refused = {
        "--dtype float16": "--dtype float16 needs a GPU", "--xformers": "--xformers needs a GPU",
        "--compile --dtype bfloat16": "--compile is for float32 on a CPU, and this is bfloat16 on cpu; omit --dtype",
        "--compile": "--compile needs openvino, which is not installed",
    } if has_only_cpu() else {}  # fmt: skip
    given = [*GENERATE, *SMALL, "--output", str(tmp_path)]
    code = (
        "import sys; from ppdiffusers_tome.tools.cli.program import main; sys.modules['openvino'] = None\n"
        f"for words in {list(refused)}:\n"
        f"    assert main([*{given}, *words.split()]) == 2\n"
        "assert 'paddle' not in sys.modules\n"
        f"assert main({given}) == 0"
    )
    done = run_python("-c", code, OMP_NUM_THREADS="1")
    errors = done.stderr.splitlines()
    told = [line.partition("error: ")[2].split(": ")[0] for line in errors[: len(refused)]]
    assert told == list(refused.values())
    assert errors[len(refused) :][:2] == [
        "loading Paddle and ppdiffusers, OMP_NUM_THREADS=1 ...", "loading photographs ...",
    ]  # fmt: skip
    assert (done.returncode, heard("\n".join(errors[len(refused) :]))) == (0, [])


def test_new_command_is_one_new_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "say_hello.py").write_text(
        "HELP = 'Say hello.'\n"
        "def add_arguments(parser): parser.add_argument('--name')\n"
        "def run(args): print('hello', args.name) if args.name else exit(7)\n"
    )
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    assert main(["say-hello", "--name", "you"]) == 0
    assert main(["--version"]) == 0
    with pytest.raises(SystemExit, match="7"):  # of a command's own, such as a library's, is no success
        main(["say-hello", "--name", ""])
    assert capsys.readouterr().out == f"hello you\nppdiffusers-tome {ppdiffusers_tome.__version__}\n"
    sys.modules.pop("ppdiffusers_tome.tools.cli.commands.say_hello")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_60_lines_and_lists_every_option(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([command, "--help"]) == 0
    text, parser = capsys.readouterr().out, make_parser(command)
    assert len(text.splitlines()) <= 60
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
    settings = parse_settings(make_parser("generate").parse_args(["--model", "emoji"]))
    pipe = object.__new__(getattr(ppdiffusers, kind))
    assert LoadedPipeline(pipe, settings).guidance_scale == guidance


def test_every_setting_is_an_option():
    parser = make_parser("generate")
    given = (
        "--max-downsample none --sx 3 --sy 4 --no-rand --no-merge-attn --merge-crossattn --merge-mlp --tome-seed 5 "
        "--tile 16 --reuse-steps 2 --method keys --start 0.1 --end 0.9 --st 2 --cache 0.5"
    )
    options = get_tome_options(parser.parse_args(given.split()))
    assert options.keys() == {*vars(ToMeConfig())} - {"ratio"}
    assert (options["max_downsample"], options["seed"]) == (None, 5)
    assert get_tome_options(parser.parse_args([])) == {}


def test_missing_packages_are_named_with_their_extra_before_any_work(monkeypatch, get_error):
    monkeypatch.setattr(process, "find_spec", lambda name: None if name == "tqdm" else find_spec(name))
    monkeypatch.setattr(generate, "run", lambda args: pytest.fail("work was started"))
    assert get_error(*GENERATE).endswith('pip install ".[cli]" in a clone of the repository')


def test_faults_show_and_missing_memory_is_one_line(monkeypatch, get_error):
    monkeypatch.setattr(generate, "run", lambda args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(GENERATE)

    def fail(args, reason="all is taken"):
        raise MemoryError(reason)

    gpu = "Out of memory error on GPU 0"
    for reason, remedy in ((gpu, "give --xformers"), ("all is taken", "on a CPU give --compile")):
        monkeypatch.setattr(generate, "run", partial(fail, reason=reason))
        assert f"not enough memory ({reason}); make images smaller, or {remedy}" in get_error(*GENERATE)
    assert get_error(*GENERATE, "--compile").endswith("make images smaller"), "one or the other"
    with pytest.raises(MemoryError), loading._explain_faults("--model", find_model("emoji")):
        fail(None)  # has no other words while loading


def test_an_image_that_does_not_fit_is_an_error_in_words(tmp_path, monkeypatch, get_error):
    """Linux would kill the process where the tensors do not exceed the machine, but what is free."""
    monkeypatch.setattr(memory, "get_free_memory", lambda: 2**29)
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(free=0))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    error = get_error(*GENERATE, "--height", "1280", "--width", "1280")
    assert re.search(r"not enough memory \(.*\); make images smaller, or on a CPU give --compile$", error)
    assert list((tmp_path / "outputs").iterdir()) == []
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_options_of_another_device_are_refused(monkeypatch, get_error):
    monkeypatch.setattr("paddle.get_device", lambda: "gpu:0")
    error = get_error(*GENERATE, "--compile", "float32")
    assert "--compile is for float32 on a CPU, and this is float32 on gpu:0" in error


def test_table_in_markdown_and_aligned(capsys):
    table = Table(["settings", "seconds"], [["ours | tile 16", "0.0123 s"], ["x", "1 s"]])
    assert table.markdown().splitlines()[2:] == [r"| ours \| tile 16 | 0.0123 s |", "| x | 1 s |"]
    table.print()
    assert capsys.readouterr().out.splitlines() == [
        "settings         seconds", "ours | tile 16  0.0123 s", "x                    1 s"
    ]  # fmt: skip


# Prints what the environment says and whether memory is kept when a command runs.
SHOW = """
import os, sys, warnings
from ppdiffusers_tome import cpu
from ppdiffusers_tome.__main__ import program
from ppdiffusers_tome.tools.cli.commands import generate
def show(args):
    warnings.warn("of two\\nlines")
    print(os.environ.get("OMP_NUM_THREADS"), os.environ.get("GLOG_minloglevel"), cpu.keeps_freed_memory())
    print("\\u4e00\\u53ea\\u732b.png")
generate.run = show
sys.argv[1:1] = ["generate"]
program()
"""


def test_process_uses_all_cores_and_keeps_memory_by_default():
    done, cores = run_python("-c", SHOW), count_usable_cores()
    assert done.stdout.splitlines()[0] == f"{cores} 2 True"
    assert done.stderr.endswith("warning: of two lines\n")
    # A terminal that lacks letters is no traceback.
    asked = dict(OMP_NUM_THREADS="3", GLOG_minloglevel="0", PYTHONIOENCODING="ascii")
    done = run_python("-c", SHOW, "--no-keep-memory", **asked)
    assert done.stdout.splitlines() == ["3 0 False", "\\u4e00\\u53ea\\u732b.png"]
    shared = {"PADDLE_LOCAL_SIZE": str(2 * cores)}  # ranks share the cores
    assert run_python("-c", SHOW, **shared).stdout.split()[0] == "1"
    shared["PADDLE_LOCAL_SIZE"] = "1"  # of Paddle's launcher, which sets the other variable to 1
    assert run_python("-c", SHOW, **shared, OMP_NUM_THREADS="1").stdout.split()[0] == str(cores)


def test_a_process_that_cannot_work_says_so_in_one_line(tmp_path):
    (tmp_path / "ppdiffusers").mkdir()
    (tmp_path / "ppdiffusers" / "__init__.py").write_text("from huggingface_hub import cached_downlod")
    (tmp_path / "pressed" / "ppdiffusers").mkdir(parents=True)
    # As modules in C++ do where Ctrl-C is pressed meanwhile.
    pressed = "raise ImportError('initialization failed') from KeyboardInterrupt()"
    (tmp_path / "pressed" / "ppdiffusers" / "__init__.py").write_text(pressed)
    generate = ["-m", "ppdiffusers_tome", *GENERATE, "--output", str(tmp_path / "out")]
    full = "import sys; sys.stdout = open('/dev/full', 'w'); from ppdiffusers_tome.__main__ import program; program()"
    for command, environment, words in (
        (generate, {"PYTHONPATH": python_path(tmp_path)},
         r"'cached_downlod' from 'huggingface_hub'.*; ppdiffusers-tome doctor says what to install$"),
        (generate, {"PYTHONPATH": python_path(tmp_path / "pressed")}, "ppdiffusers-tome: interrupted$"),
        (generate, {"HOME": "/proc/nowhere"}, "set HOME to a folder that you may write to"),
        (["-c", full, "doctor"], {}, r"standard output cannot be used \(No space left on device\)"),
        (["-c", full, "--version"], {}, r"standard output cannot be used \(No space left on device\)"),
    ):  # fmt: skip
        done = run_python(*command, **environment)
        assert (done.returncode, "Traceback" in done.stderr) == (130 if "interrupted" in words else 2, False)
        assert re.search(words, done.stderr.splitlines()[-1])

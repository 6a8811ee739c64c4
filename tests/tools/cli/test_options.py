"""Every option of every command is used or refused, which is asked where a command loads its model.

What it has made of its arguments by then, the variables of its functions, differs from what it makes without the
option; otherwise it refuses the option and names it.
"""

import re
import shlex
import shutil
import sys
from collections.abc import Iterator

import paddle
import pytest

import tiny
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.console.tome_arguments import name_option
from ppdiffusers_tome.tools.generation import loading
from tools.cli.helpers import PROMPT, make_parser

# What a command is run with, and the options that a case asks about; all that are not in the case where it has none.
CASES = {
    f"generate --prompt {PROMPT!r}": (),
    f"generate --prompt {PROMPT!r} --image PHOTO": (),
    "generate --prompts FILE": (),
    "compare": (),
    "compare --configs balanced": (),
    "compare --ratios --fewer-steps 1": ("--cache", "--end", "--tile"),
    "compare --configs balanced quality --ratios 0.5": ("--cache", "--end"),
    "tune": (),
    "visualize --method tome --ratio 0.5": (),
    "doctor": (),
}  # fmt: skip
USUAL = {"--rand", "--merge-attn", "--no-merge-crossattn", "--no-merge-mlp"}  # as without them
# Whose work begins after the model is loaded: what the images are kept as, and what is drawn of them.
LATER = {"--output", "--overwrite", "--no-keep-memory", "--target-psnr", "--target-speedup", "--help"}
VALUES = {
    "--prompt": "a photo of a rocket", "--prompts": "FILE", "--image": "PHOTO", "--model": "dit",
    "--controlnet": "CONTROLNET", "--dtype": "float16", "--config": "quality", "--configs": "quality",
    "--output": "elsewhere", "--ratio": "0.25", "--ratios": "0.25", "--method": "keys", "--cache": "0.3",
    "--start": "0.25", "--end": "0.75", "--tile": "24", "--st": "2", "--sx": "4", "--sy": "4", "--reuse-steps": "2",
    "--seeds": "3", "--max-downsample": "2", "--fewer-steps": "2", "--scheduler": "euler", "--guidance-scale": "2.5",
    "--controlnet-scale": "0.5",
}  # fmt: skip
SKIPPED = ("args", "parser", "stack", "frame", "context", "parent")


class LoadedError(BaseException):
    """The command loads its model."""


@pytest.fixture
def plan(tmp_path, photo, monkeypatch):
    """Run a command up to its model; return its exit code, or what its functions have made of the arguments."""
    (tmp_path / "prompts.txt").write_text(f"{PROMPT}\n")
    files = {"PHOTO": photo, "CONTROLNET": tiny.CONTROLNET, "FILE": tmp_path / "prompts.txt"}
    monkeypatch.chdir(tmp_path)
    made: list[str] = []

    def stop(*given, **settings):
        made.append(f"{given} {settings}")
        frame = sys._getframe(1)
        while frame.f_code is not main.__code__:
            if "ppdiffusers_tome/tools" in frame.f_code.co_filename:
                made.extend(f"{name} {value!r}" for name, value in frame.f_locals.items() if name not in SKIPPED)
            frame = frame.f_back
        raise LoadedError

    monkeypatch.setattr(loading, "load_pipeline", stop)
    monkeypatch.setattr("ppdiffusers_tome.tools.cli.commands.doctor.try_imports", stop)
    for module in ("loading", "checks"):
        monkeypatch.setattr(f"ppdiffusers_tome.tools.generation.{module}.check_device", lambda *_, **__: None)

    def run(arguments: list[str]) -> int | str:
        made.clear()
        shutil.rmtree(tmp_path / "outputs", ignore_errors=True)
        try:
            code = main([str(files.get(argument, argument)) for argument in arguments])
        except LoadedError:
            return re.sub(r" at 0x[0-9a-f]+|object of type .*", "", "\n".join(made))
        return code

    return run


def list_options(command: str) -> Iterator[tuple[str, list[str]]]:
    """Yield every option of a command with the words that give it another value than its default."""
    for action in make_parser(command.split()[0])._actions:
        for option in action.option_strings:
            if option.startswith("--"):
                usual = str(action.default)
                other = next((each for each in action.choices or () if str(each) not in usual), "1")
                yield option, [option] if action.nargs in (0, "?") else [option, VALUES.get(option, other)]


@pytest.mark.skipif(paddle.get_device() != "cpu", reason="asks for float16 and xformers as a CPU refuses them")
@pytest.mark.parametrize("case", CASES)
def test_every_option_is_used_or_refused(case, plan, capsys):
    given, asked = shlex.split(case), CASES[case]
    base = plan(given)
    assert isinstance(base, str), capsys.readouterr().err
    dropped = []
    for option, words in list_options(case):
        if option in given or option in LATER | USUAL or (asked and option not in asked):
            continue
        capsys.readouterr()
        found = plan([*given, *words])
        error = capsys.readouterr().err
        setting = option[2:].removeprefix("no-")
        is_refused = found == 2 and any(name in error for name in (option, f"--{setting} ", setting.replace("-", "_")))
        if not (is_refused or (isinstance(found, str) and found != base)):
            dropped.append((option, found if found != base else "as without it", error))
    assert not dropped


@pytest.mark.parametrize("line", [
    f"generate --prompt {PROMPT!r} --ratio 0", "generate --prompts FILE --ratio 0",
    f"visualize --prompt {PROMPT!r} --ratio 0",
    "compare --ratios 0 --cache 0.5", "compare --ratios --fewer-steps 1",
])  # fmt: skip
def test_settings_of_merging_are_refused_where_nothing_merges(line, plan, capsys):
    settings = {name_option(name) for name in vars(ToMeConfig()) if name != "ratio" and not name.startswith("cache")}
    for option, words in list_options(line):
        setting = option.replace("--no-", "--")
        if setting in settings:
            assert plan([*shlex.split(line), *words]) == 2
            assert re.search(rf"{setting} |\b{setting[2:].replace('-', '_')}\b", capsys.readouterr().err)


@pytest.mark.parametrize("command", ["generate --prompt x", "compare"])
def test_commands_begin_with_balanced_until_a_setting_is_given(command, plan):
    begins = "ToMeConfig(ratio=0.8888888888888888,"
    assert begins in plan(shlex.split(command))
    assert begins not in plan(shlex.split(f"{command} --tile 16"))

"""Random arguments that nobody means well with, the same every time.

The program answers with 0 or 2, with 2 in one line of its own, and writes nothing outside of its output folder. Most
ask for float16, which a CPU refuses after all checks and before a model is loaded.
"""

from __future__ import annotations

import random

import paddle
import pytest

from ppdiffusers_tome.tools.cli.commands import commands
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.console.parsing import Parser

HOSTILE = (
    "", " ", "-", "--", "0", "-1", "0.75", "1e308", "1e-320", "nan", "-inf", "9" * 5000, "½", "None", "[]", "日本",
    "🙂" * 40, "\x00", "a\nb", "\x1b[31m", "\udcff", "x\ud800", "%s%n", "{0}{x}", "../../escape.png", "/etc/passwd",
    "/dev/null", "/proc/self/mem", "~nobody-there/x", "photographs", "nobody/nothing/x", ".", "/", "A/" * 3000, "fast",
    "tome", "64", "65", "euler-a", "--prompt", "--ratio=0.5", "@file", "0,1,4", ",",
)  # fmt: skip


@pytest.mark.once
@pytest.mark.skipif(paddle.get_device() != "cpu", reason="a GPU would not refuse float16 but generate")
@pytest.mark.parametrize("command", ["generate", "compare", "evaluate", "tune", "visualize", "doctor"])
def test_random_arguments(command, tmp_path, monkeypatch, capfd):
    """Options at random, mostly with values of the right kind."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    chance, parser = random.Random(command), Parser()
    commands()[command].add_arguments(parser)
    fixed = {"--help", "--output", "--dtype"}
    actions = [action for action in parser._actions if action.option_strings and not fixed & {*action.option_strings}]
    usual = {int: ["0", "1", "8", "64", "-8"], float: ["0", "0.3", "0.5", "-1", "nan"]}
    common = ["--model", "photographs"] if command == "doctor" else ["--output", "out"]
    for _ in range(60):
        given = []
        for action in chance.sample(actions, chance.randint(0, 5)):
            values = [str(choice) for choice in action.choices] if action.choices else usual.get(action.type, HOSTILE)
            given.append(action.option_strings[0])
            if action.nargs != 0:
                given.append(chance.choice(values if chance.random() < 0.6 else HOSTILE))
        if chance.random() < 0.1:
            given.insert(chance.randint(0, len(given)), chance.choice(HOSTILE))
        code = main([command, *common, *given, "--dtype", "float16"])
        printed = capfd.readouterr().err
        lines = [line for line in printed.splitlines() if not line.startswith("warning: ")]
        is_one_line = len(lines) == 1 and lines[0].startswith("ppdiffusers-tome: error: ")
        assert code == 0 or (code == 2 and is_one_line), printed
        assert {path for path in tmp_path.rglob("*") if "out" not in path.parts} == {tmp_path / "work"}

"""Random arguments that nobody means well with.

The program answers with 0 or 2, with 2 in one line of its own, and writes complete files in its output folder or none.
Cases are the same every time. Most ask for float16, which a CPU refuses after all checks and before a model is loaded.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable
from pathlib import Path

import paddle
import pytest
from PIL import Image

from ppdiffusers_tome.tools.cli.commands import commands
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.console.parsing import Parser

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(paddle.get_device() != "cpu", reason="a GPU would not refuse float16 but generate"),
]

REFUSED_LAST = ["--dtype", "float16"]
HOSTILE = (
    "", " ", "-", "--", "0", "-1", "0.75", "1e308", "1e-320", "nan", "-inf", "9" * 5000, "½", "None", "[]", "日本",
    "🙂" * 40, "\x00", "a\nb", "\x1b[31m", "\udcff", "x\ud800", "%s%n", "{0}{x}", "../../escape.png", "/etc/passwd",
    "/dev/null", "/proc/self/mem", "~nobody-there/x", "bundled", "nobody/nothing/x", ".", "/", "A/" * 3000, "fast",
    "tome", "64", "65", "euler-a", "--prompt", "--ratio=0.5", "@file", "0,1,4", ",",
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run the program in a folder with an output folder in it, and check all that must hold; returns its exit code."""
    output = tmp_path / "work" / "out"
    output.parent.mkdir()
    (tmp_path / "mine.png").write_bytes(b"mine")
    monkeypatch.chdir(output.parent)

    def list_outside() -> dict[str, tuple[int, int]]:
        files = [path for path in tmp_path.rglob("*") if output not in path.parents and not path.is_dir()]
        return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in files}

    def run_program(*arguments: str) -> int:
        before, out = list_outside(), io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
            err.flush()
        printed = err.buffer.getvalue().decode()
        lines = [line for line in printed.splitlines() if not line.startswith("warning: ")]
        is_one_line = len(lines) == 1 and lines[0].startswith("ppdiffusers-tome: error: ")
        assert code == 0 or (code == 2 and is_one_line), printed
        assert list_outside() == before
        for path in output.rglob("*"):
            assert path.suffix != ".tmp"
            if path.suffix == ".png":
                with Image.open(path) as image:
                    image.load()
        return code

    return run_program


@pytest.mark.parametrize("command", ["generate", "compare", "evaluate", "tune", "visualize", "doctor"])
def test_random_arguments(command: str, run: Callable[..., int]) -> None:
    """Options at random, mostly with values of the right kind."""
    chance, parser = random.Random(command), Parser()
    commands()[command].add_arguments(parser)
    fixed = {"--help", "--output", "--dtype"}
    actions = [action for action in parser._actions if action.option_strings and not fixed & {*action.option_strings}]
    usual = {int: ["0", "1", "8", "64", "-8"], float: ["0", "0.3", "0.5", "-1", "nan"]}
    common = ["--model", "bundled"] if command == "doctor" else ["--output", "out"]
    for _ in range(60):
        given = []
        for action in chance.sample(actions, chance.randint(0, 5)):
            values = [str(choice) for choice in action.choices] if action.choices else usual.get(action.type, HOSTILE)
            given.append(action.option_strings[0])
            if action.nargs != 0:
                given.append(chance.choice(values if chance.random() < 0.6 else HOSTILE))
        if chance.random() < 0.1:
            given.insert(chance.randint(0, len(given)), chance.choice(HOSTILE))
        run(command, *common, *given, *REFUSED_LAST)

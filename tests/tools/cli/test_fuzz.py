"""More than 2,000 runs of the program on arguments, settings, prompts, pictures and models that nobody means well with.

Whatever comes, the program answers with 0 or 2, with 2 in one line of its own, and writes whole files in the folder of
its output or none. The draws are the same every time. Most runs ask for float16, which a CPU refuses after all else was
checked and just before a model is loaded; a few draw for real.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import paddle
import pytest
from PIL import Image

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.cli.commands import commands
from ppdiffusers_tome.tools.cli.commands.benchmarks import benches
from ppdiffusers_tome.tools.cli.console.parsing import Parser
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation.model_sources import find_model
from tools.cli.conftest import PROMPT, SMALL

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(paddle.get_device() != "cpu", reason="a GPU would not refuse float16 but draw"),
]

COMMANDS = ("generate", "compare", "evaluate", "tune", "visualize", "doctor")
BENCHES = ("overhead", "growth", "attach", "unet", "pipeline")
REFUSED_LAST = ["--dtype", "float16"]
HOSTILE = (
    "", " ", "-", "--", "0", "-1", "1", "2", "3", "0.5", "0.75", "1e308", "-1e308", "1e-320", "nan", "inf", "-inf",
    "9" * 25, "9" * 5000, "0x10", "1_000", "٣", "½", "True", "None", "null", "[]", "{}", "a", "é", "日本", "🙂" * 40,
    "\x00", "a\x00b", "\n", "a\nb", "\r", "\t", "\x1b[31m", "\udcff", "x\ud800", "%s%n", "{0}{x}", "$(id)", "; ls",
    "../escape", "../../escape.png", "/etc/passwd", "/dev/null", "/proc/self/mem", "~", "~nobody-there/x", "~/../..",
    "bundled", "nobody/nothing/x", "./nowhere", ".", "..", "/", "C:\\x", "con", "A" * 300, "A/" * 3000, "fast", "tome",
    "64", "8", "65", "ddim", "euler-a", "float32", "--prompt", "--ratio=0.5", "@file",
)  # fmt: skip


class Sandbox:
    """A folder where the program runs, with an output folder in it; everything outside that must stay as it is."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, folder / "work" / "out"
        self.output.parent.mkdir()
        (folder / "mine.png").write_bytes(b"mine")
        (folder / "work" / "mine.txt").write_text("mine")
        self.cases = 0

    def run(self, *arguments: str) -> int:
        """Run the program there and check all that must hold; returns its exit code."""
        self.cases += 1
        before = self._outside()
        # As Python's own: what cannot be printed is an error on one and is escaped on the other.
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
        err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main(arguments)
            out.flush(), err.flush()
        except Exception as error:
            raise AssertionError(f"a traceback for {shown(arguments)}") from error
        assert code in (0, 2), shown(arguments)
        if code == 2:
            said = err.buffer.getvalue().decode()
            lines = [line for line in said.splitlines() if not line.startswith("warning: ")]
            assert len(lines) == 1, (shown(arguments), said)
            assert lines[0].startswith("ppdiffusers-tome: error: "), (shown(arguments), said)
        assert self._outside() == before, shown(arguments)
        self._check_output(arguments)
        return code

    def _outside(self) -> dict[str, tuple[int, int]]:
        found = {}
        for path in self.folder.rglob("*"):
            if self.output not in (path, *path.parents) and not path.is_dir():
                found[str(path)] = (path.lstat().st_size, path.lstat().st_mtime_ns)
        return found

    def _check_output(self, arguments: tuple[str, ...]) -> None:
        """Files are whole, and then they are gone."""
        for path in sorted(self.output.rglob("*")) if self.output.is_dir() else []:
            if path.is_dir():
                continue
            assert not path.name.endswith(".tmp"), (shown(arguments), path)
            if path.suffix == ".png":
                with Image.open(path) as picture:
                    picture.load()
            elif path.suffix == ".json":
                json.loads(path.read_text())
            elif path.suffix == ".jsonl":
                for line in path.read_text().splitlines():
                    json.loads(line)
            path.unlink()


def shown(arguments: tuple[str, ...]) -> list[str]:
    return [ascii(each[:80]) for each in arguments]


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    made = Sandbox(tmp_path)
    monkeypatch.chdir(tmp_path / "work")
    return made


def options_of(command: ModuleType) -> list[argparse.Action]:
    """All but those that end the program, or say where files go: an output is the user's own word."""
    left_out = {"--help", "--version", "--output", "--visualdl", "--dtype"}
    parser = Parser()
    command.add_arguments(parser)
    return [action for action in parser._actions if action.option_strings and not left_out & set(action.option_strings)]


def value_for(action: argparse.Action, draw: random.Random) -> list[str]:
    """Something for one option: mostly of the right kind, so that it gets further, at times anything."""
    if action.nargs == 0:
        return []
    count = draw.choice([1, 1, 1, 2, 3]) if action.nargs in ("+", "*") else 1
    usual = {int: ["0", "1", "8", "64", "-8", "2", "7"], float: ["0", "0.3", "0.5", "-1", "3", "nan"]}
    kinds = [str(choice) for choice in action.choices] if action.choices else usual.get(action.type, HOSTILE)
    return [draw.choice(kinds if draw.random() < 0.6 else HOSTILE) for _ in range(count)]


def soup(options: list[argparse.Action], draw: random.Random, most: int) -> Iterator[str]:
    for action in draw.sample(options, draw.randint(0, min(most, len(options)))):
        values = value_for(action, draw)
        name = action.option_strings[0]
        if len(values) == 1 and draw.random() < 0.3:
            yield f"{name}={values[0]}"
        else:
            yield name
            yield from values


@pytest.mark.parametrize("command", COMMANDS)
def test_arguments(command: str, sandbox: Sandbox) -> None:
    draw = random.Random(f"arguments of {command}")
    options = options_of(commands()[command])
    model = ["--model", "bundled"] if command == "doctor" else []
    output = [] if command == "doctor" else ["--output", str(sandbox.output)]
    for _ in range(130):
        prompt = ["--prompt", PROMPT] if command == "generate" and draw.random() < 0.7 else []
        given = list(soup(options, draw, most=5))
        if draw.random() < 0.1:
            given.insert(draw.randint(0, len(given)), draw.choice(HOSTILE))
        sandbox.run(command, *model, *prompt, *given, *output, *REFUSED_LAST)
    assert sandbox.cases == 130


@pytest.mark.parametrize("benchmark", BENCHES)
def test_arguments_of_benchmarks(benchmark: str, sandbox: Sandbox) -> None:
    draw = random.Random(f"arguments of {benchmark}")
    options = [each for each in options_of(benches()[benchmark]) if "--repeats" not in each.option_strings]
    output = [] if benchmark == "attach" else ["--output", str(sandbox.output)]
    for _ in range(30):
        assert sandbox.run("bench", benchmark, *soup(options, draw, most=4), *output, "--repeats", "-1") == 2


def test_anything_in_any_order(sandbox: Sandbox) -> None:
    draw = random.Random("anything")
    words = [*HOSTILE, *COMMANDS, "bench", "--height", "--seed", "--config", "--image"]
    for _ in range(200):
        given = draw.choices(words, k=draw.randint(0, 6))
        # A command that is whole does its work, and doctor's takes half a minute.
        if given[:1] not in ([name] for name in (*COMMANDS, "bench")):
            sandbox.run(*given)
        else:
            sandbox.run(*given, "--nothing-of-that-name")


SETTINGS: dict[str, list[Any]] = {
    "ratio": [0.5, 0, -1, 0.9, 1e400, "0.5", None, [], [0.5], [0.7, 0.3], {"1": 0.5}, {"3": 0.5}, {"1": []}, {},
              {"x": 1}, True, [[0.5, 0.1]], {"1": {"2": 0.5}}, {"1": 0.5, "01": 0.2}, -0.0],
    "max_downsample": [None, 1, 3, 8, "1", 1.0, [1], 2**70], "sx": [2, 0, -1, 1, "2", 2.0, None, 10**30, True],
    "sy": [2, 1, 10**40], "use_rand": [True, 0, "no", None], "merge_attn": [True, False, 1], "merge_mlp": [False, []],
    "seed": [0, -1, 2**63, 2**63 - 1, 1.5, "x", None], "tile": [None, 0, 16, 1, "16", 2**80],
    "reuse_steps": [1, 0, 2**90], "min_similarity": [None, 0.5, 2, "x"],
    "method": ["tome", "todo", "../x", "", None, 3, ["tome"], "__init__", "method"],
    "start": [0, 0.5, 1, -1, "x"], "end": [1, 0, 0.5, [1]], "other": [1], "": [0], "__class__": ["x"], "config": [{}],
}  # fmt: skip


def json_text(draw: random.Random) -> bytes:
    """Settings that are right, nearly right, no settings, or no JSON."""
    names = draw.sample(list(SETTINGS), draw.randint(0, 4))
    text = json.dumps({name: draw.choice(SETTINGS[name]) for name in names}).encode()
    return draw.choice([text, text, text, damaged(text, draw), b"[" + text + b"]", draw.choice(NO_JSON)])


NO_JSON = (b"", b"\x00", b"null", b"3", b'"x"', b"[]", b"\xff\xfe{", b"\xef\xbb\xbf{}", b'{"ratio": NaN}', b"[[[[",
           b'{"ratio": 0.5, "ratio": 0.6}', b'{"seed": 1e999}', b'{"\\ud800": 1}', b'{"ratio": "\\u0000"}', b"{}" * 3,
           b'{"sx": ' + b"9" * 5000 + b"}", b"\x80" * 50)  # fmt: skip


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Cut off, or with a few bytes changed, doubled or lost."""
    found = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        if not found:
            break
        place = draw.randrange(len(found))
        what = draw.randrange(4)
        if what == 0:
            found[place] = draw.randrange(256)
        elif what == 1:
            del found[place : place + draw.randint(1, 20)]
        elif what == 2:
            found[place:place] = bytes(draw.randrange(256) for _ in range(draw.randint(1, 8)))
        else:
            del found[place:]
    return bytes(found)


def test_files_of_settings(sandbox: Sandbox) -> None:
    draw, file = random.Random("settings"), sandbox.folder / "settings.json"
    taken = 0
    for number in range(300):
        content = json_text(draw)
        file.write_bytes(content)
        given = [["generate", "--prompt", PROMPT, "--config", str(file)], ["visualize", "--config", str(file)],
                 ["evaluate", "--configs", str(file)]][number % 3]  # fmt: skip
        assert sandbox.run(*given, "--output", str(sandbox.output), *REFUSED_LAST) == 2
        with contextlib.suppress(ValueError, TypeError):
            taken += ToMeConfig.load(file) is not None
    assert 10 < taken < 150  # some are right, so that what follows is reached


@pytest.mark.parametrize(
    "content",
    [*(f'{{"{name}": {10**400}}}' for name in ("ratio", "start", "min_similarity")), "[" * 100_000],
    ids=["ratio", "start", "min_similarity", "depth"],
)
def test_settings_beyond_all_numbers(content: str, sandbox: Sandbox) -> None:
    (sandbox.folder / "settings.json").write_text(content)
    given = ["--config", str(sandbox.folder / "settings.json"), "--output", str(sandbox.output)]
    assert sandbox.run("generate", "--prompt", PROMPT, *given, *REFUSED_LAST) == 2


def test_suites(sandbox: Sandbox) -> None:
    draw, file = random.Random("suites"), sandbox.folder / "suite.jsonl"
    for _ in range(100):
        lines = []
        for _ in range(draw.randint(0, 3)):
            names = draw.sample(list(SETTINGS), draw.randint(0, 2))
            line: dict[str, Any] = {name: draw.choice(SETTINGS[name]) for name in names}
            line["name"] = draw.choice(["a", "b", "../../escape", "", None, 3, "unmerged", "\ud800", "A" * 400])
            line |= draw.choice([{}, {"contender": draw.choice(["ours", "port", "x", 1, None])}, {"family": ["x"]}])
            lines.append(json.dumps(line).encode())
        content = b"\n".join(lines)
        file.write_bytes(damaged(content, draw) if draw.random() < 0.3 else content)
        given = ["evaluate", "--suite", str(file), "--output", str(sandbox.output), *REFUSED_LAST]
        assert sandbox.run(*given) == 2


NAMES = ("star.png", "STAR.png", "../escape.png", "/tmp/escape.png", "a/b.png", "..\\x.png", ".png", "..png", "con.png",
         "\x00.png", "a\n.png", "é.png", "A" * 199 + ".png", "A" * 300 + ".png", "run.json", "manifest.jsonl",
         ".hidden.png", "~/x.png", "%2e%2e%2fx.png", "x.png ", "x.exe", "", "..", "NUL.png", "x.png/../../y.png",
         "../work/mine.txt", "\uff0e\uff0e/x.png", "a\u202egnp.png", "\ud800.png")  # fmt: skip


def prompts_file(draw: random.Random, kind: str) -> bytes:
    fields = {
        "prompt": [PROMPT, "", " ", "\x00", "\ud800", None, 3, ["x"], "🙂" * 300, "../../escape"],
        "output": list(NAMES), "seed": [0, -1, 2**62, 2**63, "7", "x", 1.5, True, None, "9" * 60],
        "height": [64, 0, -8, 65, 2**40 * 8, "64", "x"], "width": [64, 1e400, [], "64.0"],
        "ratio": [0.5, 0, 0.9, "nan", "x", [], True, 10**400, -0.0], "negative_prompt": ["x", 3, None, "\udcff"],
        "image": ["../mine.png", "nowhere.png", "/etc/passwd", "\x00", "A" * 5000, "", ".", 3],
        "control_image": ["../mine.png", "/dev/null"], "other": [1],
    }  # fmt: skip
    rows = []
    for _ in range(draw.randint(1, 4)):
        names = {"prompt", *draw.sample(list(fields), draw.randint(0, 3))}
        row = {name: draw.choice(values[:1] * 3 + values) for name, values in fields.items() if name in names}
        rows.append(row)
    if kind == "jsonl":
        content = "\n".join(json.dumps(row) for row in rows)
    elif kind == "csv":
        columns = sorted({name for row in rows for name in row})
        lines = [[str(row.get(name, "")) for name in columns] for row in rows]
        quote = draw.choice(['"', ""])
        content = "\n".join(",".join(f"{quote}{cell}{quote}" for cell in line) for line in [columns, *lines])
    else:
        content = "\n".join(str(row["prompt"]) for row in rows)
    raw = content.encode("utf-8", "surrogatepass")
    return damaged(raw, draw) if draw.random() < 0.3 else raw


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["jsonl", "csv", "txt"])
def test_files_of_prompts(kind: str, sandbox: Sandbox) -> None:
    draw, file = random.Random(f"prompts in {kind}"), sandbox.folder / f"prompts.{kind}"
    for number in range(120):
        file.write_bytes(prompts_file(draw, kind))
        command = ["evaluate", "--ratios", "0.5"] if number % 4 == 3 else ["generate"]
        how = [["--on-error", "skip"], []][number % 2] if command == ["generate"] else []
        if command == ["generate"] and number % 3 == 0:
            how = [*how, "--image-root", str(sandbox.folder / "work")]
        given = [*command, "--prompts", str(file), *how, "--output", str(sandbox.output), *REFUSED_LAST]
        assert sandbox.run(*given) == 2 or "skip" in how  # nothing is left to draw where every line is skipped


def pictures(draw: random.Random) -> Iterator[bytes]:
    """Pictures of several kinds, whole and damaged, and other things that are called so."""
    whole = []
    kinds = [("RGB", (40, 30), "PNG"), ("RGBA", (8, 8), "PNG"), ("P", (16, 9), "GIF"), ("1", (1, 1), "PNG"),
             ("I;16", (20, 20), "PNG"), ("RGB", (33, 17), "JPEG"), ("L", (5, 400), "BMP")]  # fmt: skip
    for mode, size, kind in kinds:
        file = io.BytesIO()
        Image.fromarray(np.arange(size[0] * size[1], dtype=np.uint8).reshape(size[::-1])).convert(mode).save(file, kind)
        whole.append(file.getvalue())
    yield from whole
    yield b""
    yield b"\x89PNG\r\n\x1a\n"
    yield whole[0].replace((40).to_bytes(4, "big") + (30).to_bytes(4, "big"), b"\x7f\xff\xff\xff" * 2)
    yield whole[0].replace((40).to_bytes(4, "big") + (30).to_bytes(4, "big"), bytes(8))
    yield b"<svg xmlns='http://www.w3.org/2000/svg'/>"
    while True:
        yield damaged(draw.choice(whole), draw)


def test_pictures(sandbox: Sandbox) -> None:
    draw, file = random.Random("pictures"), sandbox.folder / "picture.png"
    for number, content in zip(range(300), pictures(draw), strict=False):
        file.write_bytes(content)
        option = ["--image", "--control-image"][number % 2]
        given = ["generate", "--prompt", PROMPT, option, str(file), "--output", str(sandbox.output), *REFUSED_LAST]
        assert sandbox.run(*given) == 2


def test_folders_of_models(sandbox: Sandbox) -> None:
    """Links to the bundled model's files, so that all but ``model_index.json`` and one other file is right."""
    draw, bundled, folder = random.Random("models"), find_model("bundled").folder, sandbox.folder / "model"
    for path in bundled.rglob("*"):
        target = folder / path.relative_to(bundled)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.suffix != ".json":
            os.link(path, target)
        elif path.is_file():
            target.write_bytes(path.read_bytes())
    index, others = folder / "model_index.json", ["vae/config.json", "scheduler/scheduler_config.json"]
    right = index.read_bytes()
    values: list[Any] = [None, [], [None], [None, None], ["x"], ["x", None], [1, 2], ["os", "system"], ["a"] * 3, {}]
    for number in range(120):
        content = json.loads(right)
        for name in draw.sample([*content, "../x", "", "x\x00y", "/etc", "A" * 300], 2):
            content[name] = draw.choice(values)
        index.write_bytes([json.dumps(content).encode(), damaged(right, draw), draw.choice(NO_JSON)][number % 3])
        other = folder / draw.choice(others)
        kept = other.read_bytes()
        if number % 4 == 0:
            other.unlink()
        given = ["--model", str(folder), "--output", str(sandbox.output), *REFUSED_LAST]
        assert sandbox.run("generate", "--prompt", PROMPT, *given) == 2
        other.write_bytes(kept)


REAL: dict[str, Callable[[Sandbox], list[str]]] = {
    "no text": lambda box: ["--prompt", "\x00\x01\x1b[2J"],
    "half a character": lambda box: ["--prompt", "a \ud800 star", "--negative-prompt", "\udcff"],
    "long": lambda box: ["--prompt", "star " * 5000],
    "a path": lambda box: ["--prompt", "../../../escape.png"],
    "scripts": lambda box: ["--prompt", "日本 🙂 \u202e ﷽ \u0301" * 20, "--ratio", "0"],
    "largest seeds": lambda box: ["--prompt", PROMPT, "--seed", str(2**62), "--tome-seed", str(2**63 - 1)],
    "smallest picture": lambda box: ["--prompt", PROMPT, "--height", "8", "--width", "8", "--max-downsample", "8"],
    "odd picture": lambda box: ["--prompt", PROMPT, "--height", "8", "--width", "72", "--tile", "2", "--ratio", "0.7"],
    "damaged edges": lambda box: ["--prompt", PROMPT, "--image", str(box.folder / "work" / "tall.gif"), "--canny-high",
                                  "1e300"],
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_drawn_for_real(name: str, sandbox: Sandbox) -> None:
    Image.fromarray(np.arange(600, dtype=np.uint8).reshape(600, 1)).save(sandbox.folder / "work" / "tall.gif")
    sandbox.run("generate", *SMALL, *REAL[name](sandbox), "--output", str(sandbox.output))


def test_hostile_names_of_outputs_draw_in_the_folder_or_not_at_all(sandbox: Sandbox) -> None:
    file = sandbox.folder / "prompts.jsonl"
    lines = [{"prompt": PROMPT, "output": name, "height": 8, "width": 8} for name in NAMES]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = ["--steps", "1", "--prompts", str(file), "--on-error", "skip", "--output", str(sandbox.output)]
    assert sandbox.run("generate", *given) in (0, 2)
    assert not list(Path(sandbox.folder).rglob("escape*"))
    assert not Path("/tmp/escape.png").exists()


def test_names_are_letters_and_digits_whatever_the_prompt(sandbox: Sandbox) -> None:
    from ppdiffusers_tome.tools.images import image_file_name

    draw = random.Random("names")
    for number in range(1, 500):
        name = image_file_name(number, "".join(draw.choice(HOSTILE) for _ in range(draw.randint(0, 4))))
        assert all(letter in "-." or unicodedata.category(letter)[0] in "LMN" for letter in name)
        assert name == unicodedata.normalize("NFC", name)
        assert name.endswith(".png")
        assert ".." not in name
        assert len(name) < 80
        assert len(name.encode()) < 140

"""Files of prompts: every format is read where it is clear, every line is checked, and nothing in one is trusted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.specs import BadLine, ImageSpec, form_batches, read_specs
from tools.batch_options import make_options

MARK = "\ufeff"


def read(path: Path, content: str | bytes, *arguments: str) -> tuple[list[ImageSpec], list[BadLine]]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_specs(make_options(path, *arguments))


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        ("txt", f"{MARK}a red star\r\rein gelber Stern ⭐"),
        ("txt", "a red star\n \nein gelber Stern ⭐".encode("utf-16")),
        ("csv", f"{MARK}prompt,seed\na red star,\n,\nein gelber Stern ⭐,6\n"),
        ("csv", "Prompt;Negative Prompt\r\na red star;\r\n;\r\n\"ein gelber Stern ⭐\";\r\n"),
        ("tsv", " \nPrompt\tseed\na red star\t5\n\t\nein gelber Stern ⭐\t6\n"),
        ("jsonl", f'{{"prompt": "a red star", "seed": null}}\n\n{MARK}{{"prompt": "ein gelber Stern \\u2b50"}}\n'),
    ],
)  # fmt: skip
def test_all_formats_are_read_alike(tmp_path: Path, ending: str, content: str | bytes) -> None:
    specs, bad = read(tmp_path / f"a.{ending}", content, "--seed", "5")
    first = {"txt": 1, "jsonl": 1, "csv": 2, "tsv": 3}[ending]
    assert [(spec.number, spec.line, spec.prompt, spec.settings.seed, spec.file) for spec in specs] == [
        (1, first, "a red star", 5, "000001-a-red-star.png"),
        (2, first + 2, "ein gelber Stern ⭐", 6, "000002-ein-gelber-stern.png"),
    ]
    assert not bad


def test_lines_override_the_command_line(tmp_path: Path) -> None:
    values = dict(prompt="p", negative_prompt="n", seed=2**62, height=64, width=128, ratio=0.25, image=None,
                  control_image="edges.png", output="a.png")  # fmt: skip
    given = ("--height", "32", "--negative-prompt", "m")
    (by_json,), _ = read(tmp_path / "a.jsonl", json.dumps(values), *given)
    cells = ("" if value is None else str(value) for value in values.values())
    (by_csv,), _ = read(tmp_path / "a.csv", ",".join(values) + "\n" + ",".join(cells), *given)
    assert by_csv.checksum == by_json.checksum
    assert by_json.values == {"number": 1, "file": values.pop("output"), **values}
    assert by_json.settings.edges is not None
    assert (by_json.settings.edges.path, by_json.settings.edges.is_photo) == (tmp_path / "edges.png", False)
    (default,), _ = read(tmp_path / "c.txt", "p", *given)
    assert default.values == {
        "number": 1, "file": "000001-p.png", "prompt": "p", "negative_prompt": "m", "seed": 0, "height": 32,
        "width": None, "ratio": 0.5, "image": None, "control_image": None,
    }  # fmt: skip


BAD_LINES = {
    "{": "not JSON",
    "[" * 100_000: "not JSON",
    "[1]": "not an object",
    '{"prompt": " "}': "no prompt",
    '{"prompt": "\\ud800"}': "no text has",
    '{"prompt": "a", "sead": 1}': "did you mean seed?",
    '{"prompt": "a", "seed": 4611686018427387905}': "from 0 to 2**62",
    '{"prompt": "a", "seed": true}': "whole number",
    '{"prompt": "a", "height": 100}': "multiple of 8",
    '{"prompt": "a", "ratio": 1' + "0" * 400 + "}": "must be",
    '{"prompt": "a", "image": "a.jsonl", "control_image": "a.jsonl"}': "not both",
}
NAMES = ("../a.png", "/etc/a.png", "a/b.png", "a\\b.png", ".a.png", "a.jpg", " a.png", "a.png.", "a\n.png", "C:a.png",
         "x" * 197 + ".png", "\u00e9" * 99 + ".png", "manifest.jsonl")  # fmt: skip
BAD_LINES |= {json.dumps({"prompt": "a", "output": name}): "output " for name in NAMES}
# Some file systems do not distinguish these.
TWINS = ("A b-1.png", "a B-1.PNG", "\u00e9.png", "e\u0301.png")


def test_bad_line_is_named_and_takes_no_other_with_it(tmp_path: Path) -> None:
    good = [json.dumps({"prompt": "good", "output": name}) for name in TWINS]
    specs, bad = read(tmp_path / "a.jsonl", "\n".join([*good[:3], *BAD_LINES, good[3]]))
    assert [(spec.number, spec.line) for spec in specs] == [(1, 1), (3, 3)]
    assert [line.line for line in bad] == [2, *range(4, len(BAD_LINES) + 5)]
    twin = "is that of line"
    for line, words in zip(bad, (twin, *BAD_LINES.values(), twin), strict=True):
        assert words in line.error
        assert "\n" not in line.error
        assert len(line.error) < 500


def test_bad_rows_of_a_table_and_columns_that_are_not_used_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = 'prompt,seed,Category\n"two\nlines",1,Animals\na,b,c,d\na,x\ngood,4\n"open,1\nmore'
    specs, bad = read(tmp_path / "a.csv", content)
    assert [(spec.number, spec.line, spec.prompt) for spec in specs] == [(1, 2, "two\nlines"), (4, 6, "good")]
    for line, (number, words) in zip(bad, ((4, "4 cells for 3"), (5, "whole number"), (7, "close every")), strict=True):
        assert (line.line, words in line.error) == (number, True)
    assert "not used: 'category'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.yaml", "a", "must end in one of .jsonl, .csv, .tsv, .txt"), ("a.csv", "word " * 500, "'prompt'"),
        ("a.csv", 'prompt,"seed\na,1\n', "must name its columns"),
        ("a.csv", "prompt,prompt\na,b\n", "two columns 'prompt'"), ("a.txt", " \n\n", "holds no prompt"),
        ("a.csv", "prompt,sead\na,1\n", "'sead', which is not known; did you mean seed"),
        ("a.txt", "一只猫在桌子上".encode("gbk"), "iconv -f GB18030 -t UTF-8"),
    ],
)  # fmt: skip
def test_file_that_cannot_be_used_is_refused(tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
    with pytest.raises(UserError) as raised:
        read(tmp_path / name, content)
    assert words in str(raised.value)
    assert len(str(raised.value)) < 600


def test_batches_follow_from_the_file_alone(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "e.png")
    tall = {"height": 128}
    values = [{"image": "e.png"}, {}, tall, {}, {}, tall, {"negative_prompt": "n"}, {"ratio": 0.1}]
    lines = [json.dumps({"prompt": "p", **each}) for each in values]
    specs, _ = read(tmp_path / "a.jsonl", "\n".join(lines))
    assert [[spec.number for spec in batch] for batch in form_batches(specs, 2)] == [[2, 4], [3, 6], [5], [7], [8], [1]]

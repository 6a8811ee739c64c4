"""Files of prompts: every format is read where it is clear, every line is checked, and nothing in one is trusted."""

from __future__ import annotations

import argparse
import codecs
import json
from pathlib import Path

import pytest

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.run import ImageSpec, _read_specs
from ppdiffusers_tome.tools.cli.commands import generate

MARK = "\ufeff"


def read(path: Path, content: str | bytes, *arguments: str) -> list[ImageSpec]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    parser = argparse.ArgumentParser()
    generate.add_arguments(parser)
    return _read_specs(parser.parse_args(["--prompts", str(path), *arguments]))[0]


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        ("txt", f"{MARK}a red star\r\rein gelber Stern ⭐"),
        ("txt", codecs.BOM_UTF16_LE + "a red star\r\n \r\nein gelber Stern ⭐".encode("utf-16-le")),
        ("txt", "a red star\n \nein gelber Stern ⭐".encode("utf-32-be")),
        ("csv", f"{MARK}prompt,seed\na red star,\n,\nein gelber Stern ⭐,6\n"),
        ("csv", "Prompt;Negative Prompt\r\na red star;\r\n;\r\n\"ein gelber Stern ⭐\";\r\n"),
        ("tsv", "Prompt\tseed\na red star\t5\n\t\nein gelber Stern ⭐\t6\n"),
        ("jsonl", '{"prompt": "a red star", "seed": null}\n\n{"prompt": "ein gelber Stern \\u2b50"}\n'),
    ],
)  # fmt: skip
def test_all_formats_are_read_alike(tmp_path, ending, content):
    specs = read(tmp_path / f"a.{ending}", content, "--seed", "5")
    first = {"txt": 1, "jsonl": 1, "csv": 2, "tsv": 2}[ending]
    assert [(spec.line, spec.prompt, spec.settings.seed, spec.path.name) for spec in specs] == [
        (first, "a red star", 5, "000001-a-red-star.png"),
        (first + 2, "ein gelber Stern ⭐", 6, "000002-ein-gelber-stern.png"),
    ]


def test_lines_override_the_command_line(tmp_path):
    values = dict(prompt="p", negative_prompt="n", seed=2**62, height=64, width=128, ratio=0.25,
                  control_image="edges.png", output="a.png")  # fmt: skip
    given = ("--height", "32", "--negative-prompt", "m")
    (by_json,) = read(tmp_path / "a.jsonl", json.dumps(values), *given)
    cells = map(str, values.values())
    assert read(tmp_path / "a.csv", ",".join(values) + "\n" + ",".join(cells), *given) == [by_json._replace(line=2)]
    settings = by_json.settings
    assert (settings.seed, settings.height, settings.width, settings.negative_prompt) == (2**62, 64, 128, "n")
    assert (settings.tome.ratio, by_json.path.name) == (0.25, "a.png")
    assert settings.edges is not None
    assert (settings.edges.path, settings.edges.is_photo) == (tmp_path / "edges.png", False)
    (default,) = read(tmp_path / "c.txt", "p", *given)
    assert (default.settings.height, default.settings.negative_prompt, default.settings.edges) == (32, "m", None)


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
    '{"prompt": "a", "height": 1000000, "width": 1000000}': "alone takes at least",
    '{"prompt": "a", "ratio": 1' + "0" * 400 + "}": "must be",
    '{"prompt": "a", "image": "a.jsonl", "control_image": "a.jsonl"}': "not both",
}
NAMES = ("../a.png", "/etc/a.png", "a/b.png", "a\\b.png", ".a.png", "a.jpg", " a.png", "a.png.", "a\n.png", "C:a.png",
         "x" * 197 + ".png", "\u00e9" * 99 + ".png")  # fmt: skip
BAD_LINES |= {json.dumps({"prompt": "a", "output": name}): "output " for name in NAMES}


def test_bad_line_is_skipped_and_named_and_takes_no_other_with_it(tmp_path, capsys):
    good, other = (json.dumps({"prompt": "good", "output": f"{name}.png"}) for name in "ab")
    specs = read(tmp_path / "a.jsonl", "\n".join([good, good, *BAD_LINES, other]))
    assert [spec.line for spec in specs] == [1, len(BAD_LINES) + 3]
    said = capsys.readouterr().err.splitlines()
    for number, (line, words) in enumerate(zip(said, ("is that of line 1", *BAD_LINES.values()), strict=True), start=2):
        assert line.startswith(f"warning: line {number} is skipped: ")
        assert words in line
        assert len(line) < 600


def test_bad_rows_of_a_table_and_columns_that_are_not_used_are_named(tmp_path, capsys):
    content = 'prompt,seed,Category\n"two\nlines",1,Animals\na,b,c,d\na,x\ngood,4\n"open,1\nmore'
    specs = read(tmp_path / "a.csv", content)
    assert [(spec.line, spec.prompt) for spec in specs] == [(2, "two\nlines"), (6, "good")]
    unused, *said = capsys.readouterr().err.splitlines()
    assert "not used: 'category'" in unused
    expected = ((4, "more cells than the 3 columns"), (5, "whole number"), (7, "close every"))
    for line, (number, words) in zip(said, expected, strict=True):
        assert (f"line {number} " in line, words in line) == (True, True)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.yaml", "a", "must end in one of .jsonl, .csv, .tsv, .txt"), ("a.csv", "word " * 500, "'prompt'"),
        ("a.csv", "prompt,prompt\na,b\n", "must name its columns"), ("a.txt", " \n\n", "holds no prompt"),
        ("a.csv", "prompt,sead\na,1\n", "'sead', which is not known; did you mean seed"),
        ("a.csv", b"PK\x03\x04\x14\x00\xff\xfe", "a workbook of Excel as CSV"),
        ("a.csv", "prompt\n一只猫在桌子上".encode("gbk"), "iconv -f GB18030 -t UTF-8"),
        ("a.txt", b"\xff\xfea", "is not text in UTF-16"),
        ("a.jsonl", '["a cat"]\n', "holds no prompt that can be used"),
    ],
)  # fmt: skip
def test_file_that_cannot_be_used_is_refused(tmp_path, name, content, words):
    with pytest.raises(UserError) as raised:
        read(tmp_path / name, content)
    assert words in str(raised.value)
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_settings_are_read_with_any_mark(encoding, tmp_path):
    (tmp_path / "tome.json").write_text(ToMeConfig(0.25, seed=3).to_json(), encoding)
    assert ToMeConfig.load(tmp_path / "tome.json") == ToMeConfig(0.25, seed=3)

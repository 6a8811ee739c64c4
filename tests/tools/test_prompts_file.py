"""Files of prompts: every format is read where it is clear, every line is checked, and nothing in one is trusted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.specs import BadLine, ImageSpec, form_batches, read_specs
from tools.batch_options import make_options

ZERO_WIDTH_SPACE, MARK = "\u200b", "\ufeff"


def read(path: Path, content: str | bytes, *arguments: str) -> tuple[list[ImageSpec], list[BadLine]]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_specs(make_options(path, *arguments))


def test_all_formats_say_the_same(tmp_path: Path) -> None:
    contents = {
        "a.txt": "a red star\n\nein gelber Stern ⭐\r\n",
        "b.txt": f"{MARK}a red star\r{ZERO_WIDTH_SPACE}\rein gelber Stern ⭐",
        "a.csv": f"{MARK}prompt,seed\na red star,\n,\nein gelber Stern ⭐,6\n",
        "b.csv": "Prompt;Negative Prompt\r\na red star;\r\n;\r\n\"ein gelber Stern ⭐\";\r\n",
        "c.csv": 'seed\t"PROMPT"\r\ta red star\r\r\tein gelber Stern ⭐',
        "a.tsv": "Prompt\tseed\na red star\t5\n\t\nein gelber Stern ⭐\t6\n",
        "a.jsonl": f'{{"prompt": "a red star", "seed": null}}\n\n{MARK}{{"prompt": "ein gelber Stern \\u2b50"}}\n',
    }
    for name, content in contents.items():
        specs, bad = read(tmp_path / name, content, "--seed", "5")
        assert not bad, name
        first = 1 if name.endswith(("txt", "jsonl")) else 2
        assert [spec.line for spec in specs] == [first, first + 2], name
        assert [(spec.number, spec.prompt, spec.seed) for spec in specs] == [
            (1, "a red star", 5), (2, "ein gelber Stern ⭐", 6),
        ]  # fmt: skip
        assert [spec.file for spec in specs] == ["000001-a-red-star.png", "000002-ein-gelber-stern.png"]


def test_columns_that_are_not_used_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As PartiPrompts and styles.csv have them; but a misspelled one must not be ignored."""
    (spec,), _ = read(tmp_path / "a.tsv", "Prompt\tCategory\tChallenge\tNote\na cat\tAnimals\tBasic\t\n")
    assert spec.prompt == "a cat"
    assert "'category, challenge, note'" in capsys.readouterr().err
    (spec,), _ = read(tmp_path / "a.csv", "name,prompt,negative_prompt\nx,a cat,dog\n")
    assert (spec.prompt, spec.negative_prompt) == ("a cat", "dog")
    with pytest.raises(UserError, match="'sead', which is not known; did you mean seed"):
        read(tmp_path / "a.csv", "prompt,sead\na,1\n")


def test_lines_override_the_command_line(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "edges.png")
    values = dict(prompt="p", negative_prompt="n", seed=2**62, height=64, width=128, ratio=0.25, output="a.png",
                  control_image="edges.png")  # fmt: skip
    (by_json,), _ = read(tmp_path / "a.jsonl", json.dumps(values), "--height", "32", "--negative-prompt", "m")
    (by_csv,), _ = read(tmp_path / "a.csv", ",".join(values) + "\n" + ",".join(map(str, values.values())))
    assert by_json[3:9] == ("p", "n", 2**62, 64, 128, 0.25)
    assert by_json.file == "a.png"
    assert by_json.edges is not None
    assert (by_json.edges.path, by_json.edges.is_photo) == (tmp_path / "edges.png", False)
    assert by_csv.checksum == by_json.checksum
    (other,), _ = read(tmp_path / "b.jsonl", json.dumps(values | {"ratio": 0.3}))
    assert other.checksum != by_json.checksum
    (default,), _ = read(tmp_path / "c.txt", "p", "--height", "32", "--negative-prompt", "m", "--image",
                         str(tmp_path / "edges.png"))  # fmt: skip
    assert default[3:9] == ("p", "m", 0, 32, None, None)
    assert default.edges is not None


BAD_LINES = {
    "{": "not JSON",
    "[1]": "not an object",
    "[" * 100_000: "not JSON",
    "{}": "no prompt",
    '{"prompt": "a", "prompt": "b"}': "key twice",
    '{"prompt": " \\u200b"}': "no prompt",
    '{"prompt": "\\ud800"}': "no text has",
    '{"prompt": "a", "sead": 1}': "did you mean seed?",
    '{"prompt": "a", "seed": 4611686018427387905}': "from 0 to 2**62",
    '{"prompt": "a", "seed": "' + "9" * 5000 + '"}': "whole number",
    '{"prompt": "a", "height": 100}': "multiple of 8",
    '{"prompt": "a", "ratio": 1' + "0" * 400 + "}": "must be",
    '{"prompt": "a", "image": "nowhere.png"}': "does not exist",
    '{"prompt": "a", "image": "/dev/zero"}': "not a file",
    '{"prompt": "a", "image": "' + "x" * 5000 + '"}': "does not exist",
    '{"prompt": "a", "image": "a.jsonl", "control_image": "a.jsonl"}': "not both",
}


def test_bad_line_is_named_and_takes_no_other_with_it(tmp_path: Path) -> None:
    good = '{"prompt": "good"}'
    specs, bad = read(tmp_path / "a.jsonl", "\n".join([good, *BAD_LINES, good]))
    assert [(spec.number, spec.line) for spec in specs] == [(1, 1), (len(BAD_LINES) + 2, len(BAD_LINES) + 2)]
    assert [line.line for line in bad] == list(range(2, len(BAD_LINES) + 2))
    for line, words in zip(bad, BAD_LINES.values(), strict=True):
        assert words in line.error
        assert "\n" not in line.error
        assert len(line.error) < 500


def test_bad_rows_of_a_table_are_named(tmp_path: Path) -> None:
    specs, bad = read(tmp_path / "a.csv", 'prompt,seed\n"two\nlines",1\na,b,c\na,x\ngood,4\n"open,1\nmore')
    assert [(spec.number, spec.line, spec.prompt) for spec in specs] == [(1, 2, "two\nlines"), (4, 6, "good")]
    assert [line.line for line in bad] == [4, 5, 7]
    for line, words in zip(bad, ("3 cells for 2", "whole number", "close every quot"), strict=True):
        assert words in line.error


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.yaml", "a", "must end in one of .jsonl, .csv, .tsv, .txt"),
        ("a.csv", "text,seed\na,1\n", "'prompt'"),
        ("a.csv", "prompt,prompt\na,b\n", "two columns 'prompt'"),
        ("a.csv", "word " * 500, "'prompt'"),
        ("a.txt", f" \n{ZERO_WIDTH_SPACE}\n", "holds no prompt"),
        ("a.txt", "一只猫在桌子上".encode("gbk"), "iconv -f GB18030 -t UTF-8"),
    ],
)
def test_file_that_cannot_be_used_is_refused(tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
    with pytest.raises(UserError) as raised:
        read(tmp_path / name, content)
    assert words in str(raised.value)
    assert len(str(raised.value)) < 600


def test_images_are_confined_to_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    for path in (tmp_path / "mine.png", folder / "a.png", folder / "deep" / "b.png"):
        Image.new("RGB", (8, 8)).save(path)
    for link, target in (("link.png", "a.png"), ("out.png", tmp_path / "mine.png"), ("out", tmp_path)):
        (folder / link).symlink_to(target)
    (tmp_path / "in").symlink_to(folder)
    inside = ["images/a.png", "images/link.png", "images/deep/../a.png", "in/a.png", f"{folder}/deep/b.png"]
    outside = ["mine.png", "images/../mine.png", "in/../mine.png", "images/out.png", "images/out/mine.png",
               f"{folder}/out.png", f"{folder}.png", "nowhere.png", "/dev/zero", "/etc/passwd", "/nowhere",
               "x" * 5000, "/", ".."]  # fmt: skip
    for kind in ("image", "control_image"):
        content = "\n".join(json.dumps({"prompt": "p", kind: name}) for name in inside + outside)
        for root in (folder, tmp_path / "in", folder / "deep" / ".."):
            specs, bad = read(tmp_path / "a.jsonl", content, "--image-root", str(root))
            assert [spec.number for spec in specs] == list(range(1, len(inside) + 1))
            # No error says what exists outside.
            assert all("is outside of --image-root" in line.error for line in bad)
            assert len(bad) == len(outside)


@pytest.mark.parametrize(
    "name",
    ["../a.png", "/etc/a.png", "a/b.png", "a\\b.png", "..", ".png", ".a.png", "a.jpg", "a", "", " a.png", "a.png ",
     "a.png.", "a\0.png", "a\n.png", "a:b.png", "C:a.png", "a*.png", "con.png", "NUL.png", "com1.x.png",
     "x" * 197 + ".png", "\u00e9" * 99 + ".png", "run.json", "manifest.jsonl"],
)  # fmt: skip
def test_hostile_names_of_files_are_refused(tmp_path: Path, name: str) -> None:
    specs, bad = read(tmp_path / "a.jsonl", json.dumps({"prompt": "a", "output": name}))
    assert (len(specs), len(bad)) == (0, 1)
    assert bad[0].error.startswith("output ")


def test_no_two_lines_write_one_file(tmp_path: Path) -> None:
    """Good names are taken as they are, and some file systems do not tell these apart."""
    names = ["A b-1.png", "a B-1.PNG", "\u00e9.png", "e\u0301.png", "000006-p.png"]
    content = [json.dumps({"prompt": "p", "output": name}) for name in names] + ['{"prompt": "p"}']
    specs, bad = read(tmp_path / "a.jsonl", "\n".join(content))
    assert ([spec.number for spec in specs], [line.line for line in bad]) == ([1, 3, 5], [2, 4, 6])
    assert "is that of line 1 already" in bad[0].error


def test_folders_and_batches_follow_from_the_file_alone(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "e.png")
    tall = {"height": 128}
    values = [{"image": "e.png"}, {}, tall, {}, {}, tall, {"negative_prompt": "n"}, {"ratio": 0.1}]
    lines = [json.dumps({"prompt": "p", **each}) for each in values]
    specs, _ = read(tmp_path / "a.jsonl", "\n".join(lines), "--images-per-folder", "5")
    assert [spec.file for spec in specs[4:6]] == ["000005-p.png", "000006-000010/000006-p.png"]
    assert [[spec.number for spec in batch] for batch in form_batches(specs, 2)] == [[2, 4], [3, 6], [5], [7], [8], [1]]
    # More lines at the end change no batch that was full.
    specs, _ = read(tmp_path / "a.jsonl", "\n".join([*lines, lines[1]]))
    batches = [[spec.number for spec in batch] for batch in form_batches(specs, 2)]
    assert batches == [[2, 4], [3, 6], [5, 9], [7], [8], [1]]

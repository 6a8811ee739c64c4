"""Files of prompts: what their lines ask for, checked, and where they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.line import BadLine, Line, check_file_name
from ppdiffusers_tome.tools.batch.prompts import PromptsFile, lines_of
from ppdiffusers_tome.tools.batch.run import Run


def read(
    path: Path, content: str | bytes, first_seed: int = 0, image_root: Path | None = None
) -> tuple[list[Line], list[BadLine]]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    run, file = Run(path, path.parent, first_seed=first_seed, image_root=image_root), PromptsFile(path)
    return lines_of(run, file.piece(file.offset, file.line, 1000).entries, 1)


def test_three_formats_say_the_same(tmp_path):
    text, _ = read(tmp_path / "a.txt", "a red star\n\nein gelber Stern ⭐\r\n", first_seed=5)
    table, _ = read(tmp_path / "a.csv", "\ufeffprompt,seed\na red star,\n,\nein gelber Stern ⭐,6\n", first_seed=5)
    objects, _ = read(tmp_path / "a.jsonl", '{"prompt": "a red star", "seed": null}\n\n'
                      '{"prompt": "ein gelber Stern \\u2b50"}\n', first_seed=5)  # fmt: skip
    for lines, at in ((text, [1, 3]), (table, [2, 4]), (objects, [1, 3])):
        assert [(line.number, line.prompt, line.seed) for line in lines] == [
            (1, "a red star", 5), (2, "ein gelber Stern ⭐", 6),
        ]  # fmt: skip
        assert [line.file for line in lines] == ["000001-a-red-star.png", "000002-ein-gelber-stern.png"]
        assert [line.line for line in lines] == at


def test_a_line_has_its_own_settings(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "edges.png")
    values = dict(prompt="p", negative_prompt="n", seed=2**62, height=64, width=128, ratio=0.25, output="a.png",
                  control_image="edges.png")  # fmt: skip
    (by_json,), _ = read(tmp_path / "a.jsonl", json.dumps(values))
    (by_csv,), _ = read(tmp_path / "a.csv", ",".join(values) + "\n" + ",".join(map(str, values.values())))
    assert (by_json.seed, by_json.height, by_json.width, by_json.ratio) == (2**62, 64, 128, 0.25)
    assert (by_json.file, by_json.negative_prompt, by_json.control) == ("a.png", "n", tmp_path / "edges.png")
    assert by_csv.checksum == by_json.checksum
    (other,), _ = read(tmp_path / "b.jsonl", json.dumps(values | {"ratio": 0.3}))
    assert other.checksum != by_json.checksum


BAD = {
    "{": "it is not JSON",
    "nan": "it is not JSON",
    "[1]": "it is list, not an object",
    "[" * 100_000: "it is not JSON",
    '"a star"': "it is str, not an object",
    "{}": "it has no prompt",
    '{"prompt": "a", "prompt": "b"}': "it names a key twice",
    '{"prompt": " "}': "it has no prompt",
    '{"prompt": 5}': "prompt 5 must be text",
    '{"prompt": "\\ud800"}': "prompt is not UTF-8",
    '{"prompt": "a", "sead": 1}': "did you mean seed?",
    '{"prompt": "a", "seed": -1}': "seed -1 must be from 0 to 2**62",
    '{"prompt": "a", "seed": 4611686018427387905}': "must be from 0 to 2**62",
    '{"prompt": "a", "seed": 1.5}': "seed '1.5' must be a whole number",
    '{"prompt": "a", "seed": true}': "seed 'True' must be a whole number",
    '{"prompt": "a", "seed": "' + "9" * 5000 + '"}': "must be a whole number",
    '{"prompt": "a", "height": 100}': "height 100 must be a multiple of 8",
    '{"prompt": "a", "width": 0}': "width 0 must be a multiple of 8 above 0",
    '{"prompt": "a", "ratio": 0.8}': "ratio=0.8 must be",
    '{"prompt": "a", "ratio": NaN}': "ratio=nan must be",
    '{"prompt": "a", "ratio": 1' + "0" * 400 + "}": "must be",
    '{"prompt": "a", "ratio": "much"}': "ratio 'much' must be a number",
    '{"prompt": "a", "image": "nowhere.png"}': "does not exist or is not a file",
    '{"prompt": "a", "image": "."}': "does not exist or is not a file",
    '{"prompt": "a", "image": "/dev/zero"}': "does not exist or is not a file",
    '{"prompt": "a", "image": "\\u0000"}': "does not exist or is not a file",
    '{"prompt": "a", "image": "' + "x" * 5000 + '"}': "cannot be read",
    '{"prompt": "a", "image": "good.jsonl", "control_image": "good.jsonl"}': "not both",
    b'{"prompt": "\xff"}': "it is not UTF-8",
}


def test_bad_lines_are_told_by_number_and_the_others_stay(tmp_path):
    """All in one file, so that one bad line is seen not to take another with it."""
    (tmp_path / "good.jsonl").write_text("{}")
    content = [line if isinstance(line, bytes) else line.encode() for line in BAD]
    good = b'{"prompt": "good"}'
    lines, bad = read(tmp_path / "a.jsonl", b"\n".join([good, *content, good]))
    assert [(line.number, line.line) for line in lines] == [(1, 1), (len(BAD) + 2, len(BAD) + 2)]
    assert [each.line for each in bad] == list(range(2, len(BAD) + 2))
    for each, sentence in zip(bad, BAD.values(), strict=True):
        assert sentence in each.error
        assert "\n" not in each.error


def pictures_of(tmp_path: Path) -> Path:
    """A folder of pictures, with links in it, beside a file of prompts; and a picture outside."""
    folder = tmp_path / "pictures"
    (folder / "deep").mkdir(parents=True)
    for path in (tmp_path / "mine.png", folder / "a.png", folder / "deep" / "b.png"):
        Image.new("RGB", (8, 8)).save(path)
    (folder / "link.png").symlink_to("a.png")
    (folder / "out.png").symlink_to(tmp_path / "mine.png")
    (folder / "out").symlink_to(tmp_path)
    (folder / "loop.png").symlink_to("loop.png")
    (tmp_path / "in").symlink_to(folder)
    return folder


INSIDE = ("pictures/a.png", "pictures/deep/b.png", "pictures/link.png", "pictures/deep/../a.png", "in/a.png",
          "../{here}/pictures/a.png", "{folder}/a.png", "{folder}/../in/deep/b.png")  # fmt: skip
OUTSIDE = ("mine.png", "../{here}/mine.png", "pictures/../mine.png", "in/../mine.png", "pictures/out.png",
           "pictures/out/mine.png", "{folder}/out.png", "{folder}/../mine.png", "{folder}.png", "nowhere.png", ".",
           "/dev/zero", "/etc/passwd", "/nowhere", "\0", "pictures/\0", "x" * 5000, "/", "..")  # fmt: skip


@pytest.mark.parametrize("kind", ["image", "control_image"])
def test_pictures_can_be_confined_to_a_folder(tmp_path, kind):
    folder = pictures_of(tmp_path)
    named = [name.format(here=tmp_path.name, folder=folder) for name in (*INSIDE, *OUTSIDE)]
    prompts = tmp_path / "prompts.jsonl"
    content = "\n".join(json.dumps({"prompt": "p", kind: name}) for name in named)
    for within in (folder, tmp_path / "in", folder / "deep" / ".."):
        lines, bad = read(prompts, content, image_root=within)
        assert [line.line for line in lines] == list(range(1, len(INSIDE) + 1))
        assert [each.line for each in bad] == list(range(len(INSIDE) + 1, len(named) + 1))
        for each, name in zip(bad, named[len(INSIDE) :], strict=True):
            start = repr(str(tmp_path / name)[:200])[:-1]
            assert each.error.startswith(start), each.error
            assert f"is outside of --image-root {str(within)!r}" in each.error
    # What is not there is told only of that folder.
    for name in ("nowhere.png", "loop.png", "."):
        content = json.dumps({"prompt": "p", kind: f"pictures/{name}"})
        _, (bad,) = read(prompts, content, image_root=folder)
        assert "does not exist or is not a file" in bad.error
    # Without the option they mean what they say.
    (line,), _ = read(prompts, json.dumps({"prompt": "p", kind: "pictures/../mine.png"}))
    assert line.control == tmp_path / "pictures/../mine.png"


def test_a_table_is_confined_too(tmp_path):
    folder = pictures_of(tmp_path)
    content = "prompt,image\na,pictures/a.png\nb,mine.png\n"
    lines, bad = read(tmp_path / "a.csv", content, image_root=folder)
    assert ([line.line for line in lines], [each.line for each in bad]) == ([2], [3])


def test_bad_rows_of_a_table(tmp_path):
    lines, bad = read(tmp_path / "a.csv", b'prompt,seed\n"two\nlines",1\na,b,c\n\xff,2\na,x\ngood,4\n"open,1\nmore')
    assert [(line.number, line.line, line.prompt) for line in lines] == [(1, 2, "two\nlines"), (5, 7, "good")]
    assert [each.line for each in bad] == [4, 5, 6, 8]
    for each, sentence in zip(bad, ("3 cells for 2", "not UTF-8", "whole number", "close every quot"), strict=True):
        assert sentence in each.error


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.yaml", "a", "must end in one of .jsonl, .csv, .txt"),
        ("a.csv", "text,seed\na,1\n", "must name a column 'prompt'"),
        ("a.csv", "prompt,sead\na,1\n", "must name a column 'prompt'"),
        ("a.csv", "prompt,prompt\na,b\n", "once each"),
        ("a.csv", "", "must name a column 'prompt'"),
        ("a.csv", '"prompt', "no first line that names columns"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, name, content, sentence):
    with pytest.raises(UserError, match=sentence.replace("(", r"\(")):
        read(tmp_path / name, content)


CHINESE = "一只猫在桌子上"
CONVERT = r"save the file as UTF-8, such as with: iconv -f GB18030 -t UTF-8 OLD > NEW"


@pytest.mark.parametrize("encoding", ["gbk", "gb18030", "gb2312"])
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_a_file_in_gbk_is_known_and_told_how_to_convert(tmp_path, name, encoding):
    line = json.dumps({"prompt": CHINESE}, ensure_ascii=False) if name == "a.jsonl" else CHINESE
    head = "prompt\n" if name == "a.csv" else ""
    _, (bad,) = read(tmp_path / name, f"{head}{line}\n".encode(encoding))
    assert "not UTF-8" in bad.error
    begins = line if name == "a.jsonl" else CHINESE
    assert f"it may be GBK, in which it reads {begins!r}; {CONVERT}" in bad.error


def test_other_bytes_are_not_taken_for_gbk(tmp_path):
    latin = [text.encode("latin-1") for text in ("crème brûlée", "café")]
    for content in (*latin, b"\xfd\xff", b"\x81\x40\x81\x41"):
        _, (bad,) = read(tmp_path / "a.txt", content)
        assert bad.error.endswith("; save the file as UTF-8"), bad.error


LATIN = ("Größe", "größer Straße", "naïve façade", "Señor Ñandú", "«École»", "ÀÉÎ", "smørrebrød", "ÄÖÜ Äpfel")


@pytest.mark.parametrize("text", LATIN)
def test_latin_1_is_not_taken_for_gbk(text: str, tmp_path: Path) -> None:
    _, (bad,) = read(tmp_path / "a.txt", text.encode("latin-1"))
    assert bad.error.endswith("; save the file as UTF-8"), bad.error


@pytest.mark.parametrize(
    "text",
    [
        *LATIN, "café", "e\u0301tude", "µm, 5 Ω·m, φ\xd7ψ", "красная звезда", "\u0437\u0430\u0301\u043c\u043e\u043a",
        "שלום", "نجمة", "Æ и Б",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_letters_of_two_bytes_are_read_as_they_are(text: str, name: str, tmp_path: Path) -> None:
    lines = {"a.txt": text, "a.csv": f'prompt\n"{text}"', "a.jsonl": json.dumps({"prompt": text}, ensure_ascii=False)}
    (line,), bad = read(tmp_path / name, lines[name])
    assert (line.prompt, bad) == (text, [])


@pytest.mark.parametrize("text", ["一只猫", "只猫"])
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_gbk_that_is_utf_8_as_well_is_not_read_wrongly(text: str, name: str, tmp_path: Path) -> None:
    """Its letters would be Cyrillic, Hebrew and Latin ones in one word."""
    lines = {"a.txt": text, "a.csv": f"prompt\n{text}", "a.jsonl": json.dumps({"prompt": text}, ensure_ascii=False)}
    content = lines[name].encode("gbk")
    assert content.decode()
    lines, (bad,) = read(tmp_path / name, content)
    assert not lines
    assert f"prompt does not look like UTF-8; it may be GBK, in which it reads {text!r}; {CONVERT}" in bad.error


@pytest.mark.parametrize("encoding", ["gbk", "gb18030"])
def test_a_heading_in_gbk_is_told_how_to_convert(encoding: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.csv is not UTF-8; it may be GBK, in which it reads '提示词,seed'; save"):
        read(tmp_path / "a.csv", "提示词,seed\n一只猫,1\n".encode(encoding))


def test_marks_of_utf_8_are_no_text(tmp_path: Path) -> None:
    """Also of files that were put together, and before a quoted heading."""
    mark = "\ufeff"
    for name, content in (
        ("a.txt", f"{mark}{mark}one\n{mark}two\n"), ("a.csv", f'{mark}"prompt",seed\none,1\ntwo,2\n'),
        ("a.jsonl", f'{mark}{{"prompt": "one"}}\n{mark}{{"prompt": "two"}}\n'),
    ):  # fmt: skip
        lines, bad = read(tmp_path / name, content)
        assert ([line.prompt for line in lines], bad) == (["one", "two"], [])


def test_null_bytes_that_went_astray_are_told_by_the_line(tmp_path: Path) -> None:
    text = "a red star\n" * 10
    for name, content in (
        ("a.txt", f"{text}a\0b\n"), ("a.csv", f"prompt\n{text}a\0b\n"),
        ("a.jsonl", '{"prompt": "a red star"}\n' * 10 + '{"prompt": "a\\u0000b"}\n'),
    ):  # fmt: skip
        lines, (bad,) = read(tmp_path / name, content)
        assert (len(lines), bad.number) == (10, 11)
        # Python before 3.11 has its own word for it in a table.
        assert "prompt holds a null character" in bad.error or "line contains NUL" in bad.error
    with pytest.raises(UserError, match=r"a\.csv (holds a null character|has no first line .*NUL)"):
        read(tmp_path / "a.csv", "prompt,se\0ed\na long enough line,1\n")


@pytest.mark.parametrize("encoding", ["utf-32", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", ["a red star", CHINESE])
def test_utf_32_is_not_taken_for_utf_16(encoding: str, text: str, tmp_path: Path) -> None:
    name = encoding.upper().replace("-32-", "-32")
    with pytest.raises(UserError, match=rf"not UTF-8; it (is|may be) UTF-32; save .* iconv -f {name} "):
        read(tmp_path / "a.txt", f"{text}\n".encode(encoding))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", ["一只猫", "只猫在桌子上"])
def test_chinese_in_utf_16_is_known_by_the_few_zeros_that_it_has(encoding: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"it may be UTF-16; .* iconv -f {encoding.upper().replace('-16-', '-16')} "):
        read(tmp_path / "a.txt", f"{text}\n{text}\n".encode(encoding))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_utf_16_without_a_mark_is_known_by_its_zeros(encoding: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes("prompt\na red star\n".encode(encoding))
    with pytest.raises(UserError, match=f"it may be UTF-16; .* iconv -f {encoding.upper().replace('-16-', '-16')} "):
        PromptsFile(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_file_in_utf_16_is_told_so(tmp_path, encoding):
    content = ("" if encoding == "utf-16" else "\ufeff") + "a star\n" + CHINESE
    with pytest.raises(UserError, match=r"a\.txt is not UTF-8; it is UTF-16; save the file as UTF-8, such as with"):
        read(tmp_path / "a.txt", content.encode(encoding))


def test_nothing_long_is_echoed_whole(tmp_path):
    """A file that is called .csv and is none, keys and values that are whole texts."""
    words = "word " * 500
    for line in ({words: 1, "prompt": "a"}, {"prompt": [words]}, {"prompt": "a", "output": words}):
        _, (bad,) = read(tmp_path / "a.jsonl", json.dumps(line))
        assert len(bad.error) < 500
    with pytest.raises(UserError) as raised:
        read(tmp_path / "a.csv", words)
    assert len(str(raised.value)) < 600


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        PromptsFile(tmp_path / "nowhere.txt")


@pytest.mark.parametrize(
    "name",
    ["../a.png", "/etc/a.png", "a/b.png", "a\\b.png", "..", ".png", ".a.png", "a.jpg", "a", "", " a.png", "a.png ",
     "a.png.", "a\0.png", "a\n.png", "a:b.png", "C:a.png", "a*.png", "con.png", "NUL.png", "com1.x.png",
     "x" * 197 + ".png", "\u00e9" * 99 + ".png", "run.json", "manifest.jsonl"],
)  # fmt: skip
def test_hostile_names_are_refused(tmp_path, name):
    lines, bad = read(tmp_path / "a.jsonl", json.dumps({"prompt": "a", "output": name}))
    assert (len(lines), len(bad)) == (0, 1)
    assert bad[0].error.startswith("output ")


@pytest.mark.parametrize("name", ["a.png", "A B-1.PNG", "é一.png", "x" * 196 + ".png", "console.png"])
def test_good_names_are_taken(name):
    check_file_name(name)


def test_no_two_lines_write_one_file(tmp_path):
    names = ["a.png", "A.PNG", "\u00e9.png", "e\u0301.png", "000006-p.png"]
    content = [json.dumps({"prompt": "p", "output": name}) for name in names] + ['{"prompt": "p"}']
    lines, bad = read(tmp_path / "a.jsonl", "\n".join(content))
    assert [line.number for line in lines] == [1, 3, 5]
    assert [each.line for each in bad] == [2, 4, 6]
    assert "is that of line 1 already" in bad[0].error

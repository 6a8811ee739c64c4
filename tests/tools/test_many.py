"""Files of prompts, batches and the output folder of many pictures: what can be known without drawing."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from PIL import Image

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.drawing.picture_files import write_picture
from ppdiffusers_tome.tools.many_prompts.batches import form_batches
from ppdiffusers_tome.tools.many_prompts.folder import (
    MANIFEST,
    PICTURE_KEY,
    OutputFolder,
    entry_of,
    rank_manifest,
    run_checksum,
    with_checksum,
)
from ppdiffusers_tome.tools.many_prompts.line import BadLine, Line, check_file_name
from ppdiffusers_tome.tools.many_prompts.preparing import prepare_output
from ppdiffusers_tome.tools.many_prompts.prompts import read_prompts
from ppdiffusers_tome.tools.measuring.json_lines import Writer

RUN = {"model": "bundled", "batch_size": 2}


def read(path: Path, content: str | bytes, first_seed: int = 0) -> tuple[list[Line], list[BadLine]]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_prompts(path, first_seed=first_seed, tome=ToMeConfig())


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
    "[1]": "it is list, no object",
    "[" * 100_000: "it is not JSON",
    '"a star"': "it is str, no object",
    "{}": "it has no prompt",
    '{"prompt": "a", "prompt": "b"}': "it names a key twice",
    '{"prompt": " "}': "it has no prompt",
    '{"prompt": 5}': "prompt 5 must be text",
    '{"prompt": "\\ud800"}': "prompt is no UTF-8",
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
    '{"prompt": "a", "image": "nowhere.png"}': "is not there, or no file",
    '{"prompt": "a", "image": "."}': "is not there, or no file",
    '{"prompt": "a", "image": "/dev/zero"}': "is not there, or no file",
    '{"prompt": "a", "image": "\\u0000"}': "is not there, or no file",
    '{"prompt": "a", "image": "' + "x" * 5000 + '"}': "cannot be read",
    '{"prompt": "a", "image": "good.jsonl", "control_image": "good.jsonl"}': "not both",
    b'{"prompt": "\xff"}': "it is no UTF-8",
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
    prompts.write_text("\n".join(json.dumps({"prompt": "p", kind: name}) for name in named))
    for within in (folder, tmp_path / "in", folder / "deep" / ".."):
        lines, bad = read_prompts(prompts, first_seed=0, tome=ToMeConfig(), pictures_within=within)
        assert [line.line for line in lines] == list(range(1, len(INSIDE) + 1))
        assert [each.line for each in bad] == list(range(len(INSIDE) + 1, len(named) + 1))
        for each, name in zip(bad, named[len(INSIDE) :], strict=True):
            start = repr(str(tmp_path / name)[:200])[:-1]
            assert each.error.startswith(start), each.error
            assert f"is outside of --pictures-within {str(within)!r}" in each.error
    # What is not there is told only of that folder.
    for name in ("nowhere.png", "loop.png", "."):
        prompts.write_text(json.dumps({"prompt": "p", kind: f"pictures/{name}"}))
        _, (bad,) = read_prompts(prompts, first_seed=0, tome=ToMeConfig(), pictures_within=folder)
        assert "is not there, or no file" in bad.error
    # Without the option they mean what they say.
    prompts.write_text(json.dumps({"prompt": "p", kind: "pictures/../mine.png"}))
    (line,), _ = read_prompts(prompts, first_seed=0, tome=ToMeConfig())
    assert line.control == tmp_path / "pictures/../mine.png"


def test_a_table_is_confined_too(tmp_path):
    folder = pictures_of(tmp_path)
    (tmp_path / "a.csv").write_text("prompt,image\na,pictures/a.png\nb,mine.png\n")
    lines, bad = read_prompts(tmp_path / "a.csv", first_seed=0, tome=ToMeConfig(), pictures_within=folder)
    assert ([line.line for line in lines], [each.line for each in bad]) == ([2], [3])


def test_bad_rows_of_a_table(tmp_path):
    lines, bad = read(tmp_path / "a.csv", b'prompt,seed\n"two\nlines",1\na,b,c\n\xff,2\na,x\ngood,4\n"open,1\nmore')
    assert [(line.number, line.line, line.prompt) for line in lines] == [(1, 2, "two\nlines"), (5, 7, "good")]
    assert [each.line for each in bad] == [4, 5, 6, 8]
    for each, sentence in zip(bad, ("3 cells for 2", "no UTF-8", "whole number", "close every quot"), strict=True):
        assert sentence in each.error


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.yaml", "a", "must end in one of .jsonl, .csv, .txt"),
        ("a.txt", "\n \n", "holds no prompt"),
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


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_prompts(tmp_path / "nowhere.txt", first_seed=0, tome=ToMeConfig())


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


def lines_of(tmp_path: Path, *values: dict) -> list[Line]:
    lines, bad = read(tmp_path / "prompts.jsonl", "\n".join(json.dumps({"prompt": "p", **each}) for each in values))
    assert bad == []
    return lines


def test_batches_follow_from_the_file_alone(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "e.png")
    small, large, edges = {}, {"height": 128}, {"image": "e.png"}
    lines = lines_of(tmp_path, edges, small, large, small, small, large, {"negative_prompt": "n"}, {"ratio": 0.1})
    found = [[line.number for line in batch.lines] for batch in form_batches(lines, 2)]
    assert found == [[2, 4], [3, 6], [5], [7], [8], [1]]
    assert len(form_batches(lines, 2, all_controlled=True, all_negative=True)) == 5
    # More lines at the end change no batch that was full.
    longer = lines_of(tmp_path, edges, small, large, small, small, large, {"width": 64}, {"ratio": 0.1}, small)
    found = [[line.number for line in batch.lines] for batch in form_batches(longer, 2)]
    assert found == [[2, 4], [3, 6], [5, 9], [7], [8], [1]]


def finish(path: Path, line: Line) -> dict:
    """Write a picture as a run does, and return its line of the manifest."""
    entry = entry_of(line, 8, 8, 0.5, [line.number])
    kept = {"prompt": line.prompt, PICTURE_KEY: {"run": run_checksum(RUN), "entry": entry}}
    write_picture(path / line.file, Image.new("RGB", (8, 8), (line.number, 0, 0)), kept)
    return with_checksum(entry, path / line.file)


def begin(path: Path, lines: list[Line], run: dict = RUN, *, overwrite: bool = False) -> tuple[OutputFolder, Writer]:
    return prepare_output(path, Path("prompts.jsonl"), run, lines, overwrite=overwrite)


def whole_run(path: Path, lines: list[Line]) -> dict[str, bytes]:
    folder, part = begin(path, lines)
    with part:
        for line in lines:
            if not folder.is_done(line):
                part.add(finish(path, line))
    OutputFolder(path).gather()
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_a_run_stopped_after_any_write_ends_as_one_that_was_not(tmp_path):
    """The state of the folder after each single write, and after half of it, as a killed process leaves it."""
    lines = lines_of(tmp_path, *[{}] * 4)
    uninterrupted = whole_run(tmp_path / "whole", lines)
    assert sorted(uninterrupted) == sorted([MANIFEST, "run.json", *(line.file for line in lines)])
    for finished in range(5):
        for torn in ("nothing", "picture", "picture without its line", "line", "damaged line"):
            path = tmp_path / f"{finished}-{torn}"
            _, part = begin(path, lines)
            with part:
                for line in lines[:finished]:
                    part.add(finish(path, line))
            last = lines[min(finished, 3)]
            if torn == "picture":
                (path / f".{last.file}.123.tmp").write_bytes(b"half")
                (path / f".{MANIFEST}.123.tmp").write_bytes(b"half")
            elif finished < 4 and torn != "nothing":
                entry = json.dumps(finish(path, last)).encode()
                if torn == "line":
                    part.path.write_bytes(part.path.read_bytes() + entry[:-9])
                elif torn == "damaged line":
                    part.path.write_bytes(part.path.read_bytes() + b"\0" * len(entry) + b"\n")
            times = {file.name: file.stat().st_mtime_ns for file in path.glob("*.png")}
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                assert whole_run(path, lines) == uninterrupted, path.name
            is_told = finished < 4 and torn in ("line", "damaged line")
            assert [f"part-0000.jsonl, line {finished + 1} is not whole" in str(each.message) for each in told] == (
                [True] * is_told
            )
            assert all((path / name).stat().st_mtime_ns == time for name, time in times.items()), "drawn twice"


def test_other_ranks_parts_are_gathered_in_order_and_once(tmp_path):
    lines = lines_of(tmp_path, *[{}] * 4)
    uninterrupted = whole_run(tmp_path / "whole", lines)
    path = tmp_path / "many"
    _, first = begin(path, lines)
    with first, rank_manifest(path, 1) as second:
        for line in lines:
            (second if line.number % 2 else first).add(finish(path, line))
        second.add({"skipped": 7, "error": "why"})
        second.add(json.loads(first.path.read_text().splitlines()[0]))
    assert OutputFolder(path).gather() == [BadLine(7, "why")]
    assert {file.name: file.read_bytes() for file in path.iterdir()} == uninterrupted


def test_a_lost_picture_is_drawn_again_and_a_lost_manifest_found_in_the_pictures(tmp_path):
    lines = lines_of(tmp_path, *[{}] * 3)
    uninterrupted = whole_run(tmp_path / "a", lines)
    (tmp_path / "a" / lines[1].file).unlink()
    folder, part = begin(tmp_path / "a", lines)
    part.close()
    assert [folder.is_done(line) for line in lines] == [True, False, True]
    assert whole_run(tmp_path / "a", lines) == uninterrupted
    (tmp_path / "a" / MANIFEST).unlink()
    assert whole_run(tmp_path / "a", lines) == uninterrupted


def test_nothing_that_belongs_to_something_else_is_replaced(tmp_path):
    lines = lines_of(tmp_path, *[{}] * 3)
    path = tmp_path / "a"
    path.mkdir()
    (path / lines[2].file).write_bytes(b"mine")
    with pytest.raises(UserError, match="exists already"):
        begin(path, lines)
    assert [file.name for file in path.iterdir()] == [lines[2].file]
    (path / lines[2].file).unlink()
    uninterrupted = whole_run(path, lines)
    # Another run, a changed line, and another's picture where one is to come.
    with pytest.raises(UserError, match="batch_size=2 then and 3 now"):
        begin(path, lines, {**RUN, "batch_size": 3})
    changed = lines_of(tmp_path, {}, {"seed": 9}, {})
    with pytest.raises(UserError, match=r"line 2 asks for something else than when 000002-p\.png was drawn"):
        begin(path, changed)
    longer = lines_of(tmp_path, *[{}] * 4)
    (path / longer[3].file).symlink_to("nowhere")
    with pytest.raises(UserError, match="exists already"):
        begin(path, longer)
    (path / longer[3].file).unlink()
    assert {file.name: file.read_bytes() for file in path.iterdir()} == uninterrupted
    # Asked to, they are.
    folder, part = begin(path, changed, overwrite=True)
    part.close()
    assert [folder.is_done(line) for line in changed] == [True, False, True]
    folder, part = begin(path, lines, {**RUN, "batch_size": 3}, overwrite=True)
    part.close()
    assert not any(folder.is_done(line) for line in lines)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_second_run_in_the_same_folder_is_refused(tmp_path, rank):
    lines = lines_of(tmp_path, {})
    _, part = begin(tmp_path / "a", lines)
    part.close()
    refused = pytest.raises(UserError, match=f"another run writes to .*part-000{rank}.jsonl")
    with rank_manifest(tmp_path / "a", rank), refused:
        begin(tmp_path / "a", lines)
    _, part = begin(tmp_path / "a", lines)
    part.close()


def test_the_folder_is_the_runs_until_it_is_closed(tmp_path):
    """Also while it gathers: a run that began then would find its own part gathered and removed."""
    lines = lines_of(tmp_path, *[{}] * 2)
    folder, part = begin(tmp_path / "a", lines)
    with part:
        part.add(finish(tmp_path / "a", lines[0]))
        folder.gather()
        with pytest.raises(UserError, match="another run writes to"):
            begin(tmp_path / "a", lines)
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == ["000001-p.png", MANIFEST, "run.json"]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_part_that_is_a_link_is_refused(tmp_path, rank, overwrite):
    """Going on in somebody else's folder must not empty, or add to, what such a link leads to."""
    lines = lines_of(tmp_path, {})
    whole_run(tmp_path / "a", lines)
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / "a" / f"manifest.part-000{rank}.jsonl").symlink_to(mine)
    with pytest.raises(UserError, match=f"manifest.part-000{rank}.jsonl is a link"):
        begin(tmp_path / "a", lines, {**RUN, "batch_size": 3} if overwrite else RUN, overwrite=overwrite)
    assert mine.read_text() == "mine"


def ascii_of_start(text: str) -> str:
    return ascii(text[:40])


@pytest.mark.parametrize(
    "entry",
    ['{"skipped": [1], "error": "why"}', '{"skipped": 1}', '{"skipped": 1, "error": 2}', '{"number": [], "sha256": ""}',
     '{"number": 1}', '{"number": 1, "sha256": null}', "[" * 100_000, "[1]", '{"run": [[]]}'],
    ids=ascii_of_start,
)  # fmt: skip
def test_what_is_no_entry_of_a_part_or_manifest_changes_nothing(tmp_path, entry):
    lines = lines_of(tmp_path, *[{}] * 2)
    uninterrupted = whole_run(tmp_path / "a", lines)
    for name in (MANIFEST, "manifest.part-0000.jsonl", "manifest.part-0003.jsonl"):
        with (tmp_path / "a" / name).open("a") as file:
            file.write(entry + "\n")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert whole_run(tmp_path / "a", lines) == uninterrupted


@pytest.mark.parametrize("text", ["[" * 100_000, "no JSON", None], ids=["beyond all depth", "another's", "gone"])
def test_a_folder_whose_run_is_unknown_is_left_as_it_is(text: str | None, tmp_path: Path) -> None:
    lines = lines_of(tmp_path, {})
    uninterrupted = whole_run(tmp_path / "a", lines)
    run, manifest = tmp_path / "a" / "run.json", tmp_path / "a" / MANIFEST
    before = manifest.read_bytes()
    run.write_text(text) if text is not None else run.unlink()
    with pytest.raises(UserError, match=r"holds a run\.json that cannot be read|manifest\.jsonl exists already"):
        begin(tmp_path / "a", lines)
    assert manifest.read_bytes() == before
    assert (run.read_text() if run.exists() else None) == text
    with begin(tmp_path / "a", lines, overwrite=True)[1]:
        pass
    assert whole_run(tmp_path / "a", lines) == uninterrupted


def test_a_temporary_file_that_is_a_link_is_not_followed(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / f".a.png.{os.getpid()}.tmp").symlink_to(mine)
    write_picture(tmp_path / "a.png", Image.new("RGB", (8, 8)))
    assert mine.read_text() == "mine"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.png", "mine"]


def test_a_system_without_fcntl_keeps_a_folder_too(tmp_path):
    """As Windows is."""
    code = (
        "import sys; sys.modules['fcntl'] = None; from pathlib import Path\n"
        "from ppdiffusers_tome.tools.many_prompts.folder import OutputFolder, rank_manifest\n"
        "with rank_manifest(Path(sys.argv[1]), 0) as part: part.add({'number': 1, 'sha256': ''})\n"
        "folder = OutputFolder(Path(sys.argv[1])); folder.gather(); print(sorted(folder.entries))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout == "[1]\n", done.stderr


def test_a_full_disk_leaves_the_part_as_it_was(tmp_path):
    with rank_manifest(tmp_path, 0) as part:
        part.add({"number": 1})
        before = part.path.read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, limits[1]))
        try:
            with pytest.raises(UserError, match="make room and give the same command again"):
                part.add({"number": 2})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert part.path.read_bytes() == before
        part.add({"number": 2})
        assert part.path.read_bytes() == before + b'{"number": 2}\n'


def test_files_of_prompts_and_folders_need_no_paddle():
    code = (
        "import sys; from ppdiffusers_tome.tools.many_prompts import prompts, batches, folder, ranks, shard; "
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"paddle", "numpy", "PIL"} & set(done.stdout.split())

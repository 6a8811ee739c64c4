"""Files of more lines than a folder takes pictures: chunk by chunk, on any number of ranks, stopped at any moment."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.chunks import INDEX, Chunk, read_index
from ppdiffusers_tome.tools.batch.finding import find_chunks, read_chunk
from ppdiffusers_tome.tools.batch.folder import MANIFEST, SKIPPED, rank_manifest
from ppdiffusers_tome.tools.batch.line import SKIP
from ppdiffusers_tome.tools.batch.prompts import PromptsFile, lines_of
from ppdiffusers_tome.tools.batch.run import Run
from tools.many_runs import IDENTITY, TOO_LONG, asked, begin, chunks_of, contents, run_ranks, whole_run

pytestmark = pytest.mark.once

FOLDERS = ("000006-000010", "000011-000015", "000016-000020")


def few(tmp_path: Path, number: int = 18, output: str = "a", **settings) -> Run:
    """A run over so many lines, five to a folder and two to a batch."""
    values = [{"prompt": f"p {each}"} for each in range(number)]
    return asked(tmp_path, *values, output=output, **{"images_per_folder": 5, "batch_size": 2, **settings})


def mixed(tmp_path: Path, output: str = "a") -> Run:
    """Lines of several kinds in every chunk, and such as cannot be drawn."""
    Image.new("RGB", (8, 8)).save(tmp_path / "edges.png")
    edges, too_long, bad = {"control_image": "edges.png"}, {"prompt": TOO_LONG}, {"seed": -1}
    kinds = [{}, {"height": 64}, edges, too_long, {}, bad, {"ratio": 0.3}]
    lines = [{"prompt": f"p {number}", **kinds[number % len(kinds)]} for number in range(23)]
    return asked(tmp_path, *lines, output=output, images_per_folder=5, batch_size=2, on_error=SKIP)


def append(run: Run, text: str) -> None:
    with run.prompts.open("a") as file:
        file.write(text)


def test_every_chunk_has_a_folder(tmp_path):
    found = whole_run(few(tmp_path))
    names = [f"{number:06d}-p-{number - 1}.png" for number in range(1, 19)]
    folders = ["", *(f"{folder}/" for folder in FOLDERS)]
    pictures = [f"{folders[number // 5]}{name}" for number, name in enumerate(names)]
    assert sorted(found) == sorted([*pictures, *(f"{folder}{MANIFEST}" for folder in folders), "run.json", INDEX])
    for place, folder in enumerate(folders):
        numbers = [json.loads(line)["number"] for line in found[f"{folder}{MANIFEST}"].splitlines()]
        assert numbers == list(range(1, 19))[place * 5 : place * 5 + 5]


@pytest.mark.parametrize(
    ("number", "folder"),
    [(1, "."), (5001, "005001-010000"), (4_995_001, "4995001-5000000"),
     (5_000_001, "5000001-10000000/5000001-5005000"), (9_995_001, "5000001-10000000/9995001-10000000"),
     (10_000_001, "10000001-15000000/10000001-10005000")],
)  # fmt: skip
def test_no_folder_holds_more_than_a_thousand_folders(number, folder):
    chunk = Chunk(number, 5000, 1, 5000, 0, 10**6, "", 0, 0)
    assert chunk.folder(Run(Path("a.txt"), Path("out"))) == Path("out") / folder


def test_folders_in_folders_are_drawn_found_and_forgotten_too(tmp_path):
    run = few(tmp_path, 22, images_per_folder=3, folders_per_folder=2)
    found = whole_run(run)
    assert {str(Path(name).parent) for name in found} == {
        ".", "000004-000006", *(f"000007-000012/{each}" for each in ("000007-000009", "000010-000012")),
        *(f"000013-000018/{each}" for each in ("000013-000015", "000016-000018")),
        *(f"000019-000024/{each}" for each in ("000019-000021", "000022-000024")),
    }  # fmt: skip
    assert run_ranks(run) == 0
    assert contents(run.output) == found
    forgotten = replace(run, identity={**IDENTITY, "batch_size": 3}, overwrite=True)
    chunks, part = begin(forgotten)
    part.close()
    assert sum(sum(chunk.left) for chunk in chunks) == 22
    shutil.rmtree(run.output / "000013-000018")
    (run.output / "000013-000018").symlink_to(tmp_path)
    with pytest.raises(UserError, match="000013-000018 is a link or a file"):
        begin(forgotten)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (3, 6, 0, 2, 5, 1, 4)], ids=str)
def test_bytes_are_the_same_whatever_the_ranks(tmp_path, order):
    alone = whole_run(mixed(tmp_path, "alone"))
    assert sum(name.endswith(".png") for name in alone) == 17
    skipped = b"".join(alone[name] for name in sorted(alone, key=len) if name.endswith(SKIPPED)).splitlines()
    assert sorted(json.loads(line)["number"] for line in skipped) == [4, 6, 11, 13, 18, 20]
    assert whole_run(mixed(tmp_path, "many"), order) == alone


@pytest.mark.parametrize("order", [(0,), (0, 1, 2), (2, 1, 0)], ids=str)
def test_killed_after_any_batch_it_ends_as_if_it_had_not_been(tmp_path, order):
    alone, batches = whole_run(mixed(tmp_path, "alone")), 0
    while True:
        run = mixed(tmp_path, f"{batches}")
        drawn = run_ranks(run, order, batches=batches)
        if drawn == 17:
            break
        times = {path: path.stat().st_mtime_ns for path in run.output.rglob("*.png")}
        assert len(times) == drawn
        assert run_ranks(run, order[::-1]) == 17 - drawn
        assert contents(run.output) == alone
        assert all(path.stat().st_mtime_ns == time for path, time in times.items()), "drawn twice"
        batches += 1
    assert batches > 10 / len(order)


def test_what_is_finished_is_not_read_again(tmp_path):
    run = few(tmp_path)
    assert run_ranks(run, batches=7) == 12
    chunks = read_index(run.output)
    assert [chunk.left for chunk in chunks.values()] == [(0, 0), (0, 0), (5, 0), (3, 0)]
    (run.output / FOLDERS[0] / MANIFEST).write_text("nobody reads this")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run_ranks(run) == 6
        assert run_ranks(run) == 0


def test_lines_that_are_added_are_drawn(tmp_path):
    longer = whole_run(few(tmp_path, 24, "longer"))
    run = few(tmp_path, 18)
    whole_run(run)
    times = {path: path.stat().st_mtime_ns for path in run.output.rglob("*.png")}
    assert run_ranks(few(tmp_path, 24)) == 6
    # The last chunk had a batch of one picture, which stays what it was.
    found = contents(run.output)
    assert found.keys() == longer.keys()
    different = {name for name in found if found[name] != longer[name]}
    assert different == {f"{FOLDERS[2]}/000018-p-17.png", f"{FOLDERS[2]}/{MANIFEST}"}
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())


@pytest.mark.parametrize("number", [10, 12])
def test_a_last_line_that_goes_on_is_another(tmp_path, number):
    """Also where a full chunk ends with it."""
    run = replace(few(tmp_path), prompts=tmp_path / "prompts.txt")
    run.prompts.write_text("\n".join(f"p {each}" for each in range(number)))
    assert run_ranks(run) == number
    append(run, " more")
    with pytest.raises(UserError, match=f"line {number} differs from when"):
        begin(run)


@pytest.mark.parametrize("place", [0, 7, 17])
def test_a_line_that_was_changed_is_refused(tmp_path, place):
    run = few(tmp_path)
    found, before = whole_run(run), run.prompts.read_text()
    run.prompts.write_text(before.replace(f'"p {place}"', '"q"'))
    with pytest.raises(UserError, match=f"line {place + 1} differs from when"):
        begin(run)
    lines = before.split("\n")
    run.prompts.write_text("\n".join([*lines[:place], *lines[place + 1 :], '{"prompt": "q"}']))
    with pytest.raises(UserError, match="differs from when"):
        begin(run)
    with pytest.raises(UserError, match="line 1 differs from when"):
        begin(replace(run, first_seed=1))
    run.prompts.write_text(before)
    assert run_ranks(run) == 0
    assert contents(run.output) == found
    # A mended line changes those after it in no way.
    run.prompts.write_text(before.replace(f'"p {place}"', '"q"'))
    assert run_ranks(replace(run, overwrite=True)) == 1


def test_what_was_lost_of_a_finished_chunk_is_drawn_again(tmp_path):
    run = mixed(tmp_path)
    found = whole_run(run)
    picture = sorted((run.output / FOLDERS[1]).glob("*.png"))[1]
    for lose, drawn in (
        (picture.unlink, 1), ((run.output / FOLDERS[1] / MANIFEST).unlink, 0),
        ((run.output / INDEX).unlink, 0), (lambda: shutil.rmtree(run.output / FOLDERS[0]), 4),
    ):  # fmt: skip
        lose()
        assert run_ranks(run) == drawn
        assert contents(run.output) == found


def test_what_a_killed_rank_leaves_in_a_chunk_is_cleared_away(tmp_path):
    run = few(tmp_path)
    found = whole_run(run)
    folder = run.output / FOLDERS[0]
    (folder / ".manifest.part-0005.jsonl.lock").touch()
    (folder / f".{MANIFEST}.123.tmp").touch()
    (folder / "manifest.part-0007.jsonl").touch()
    assert run_ranks(run) == 0
    assert contents(run.output) == found


@pytest.mark.parametrize(
    "content",
    [b"", b"[" * 100_000, b'{"number": 1}\n', b'{"number": -1, "left": [1]}', b"\0\n\xff"],
    ids=["empty", "depth", "short", "strange", "binary"],
)
def test_an_index_that_is_none_is_made_anew(tmp_path, content):
    run = few(tmp_path)
    found = whole_run(run)
    (run.output / INDEX).write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run_ranks(run) == 0
    assert contents(run.output) == found


@pytest.mark.parametrize(
    ("name", "value"),
    [("offset", 10**30), ("length", 10**18), ("length", 3), ("entries", 10**9), ("lines", 7), ("checksum", "x"),
     ("number", 2), ("bad", -1), ("progress", None), ("progress", {"left": [0, "x"]}), ("progress", {"left": 3})],
)  # fmt: skip
def test_an_index_that_lies_about_a_place_is_found_out(tmp_path, name, value):
    run = few(tmp_path)
    found = whole_run(run)
    lines = [json.loads(line) for line in (run.output / INDEX).read_text().splitlines()]
    lines[1][name] = value
    (run.output / INDEX).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run_ranks(run) == 0
    assert contents(run.output) == found


def test_what_cannot_be_read_is_told_before_anything_is_drawn(tmp_path):
    run = few(tmp_path)
    append(run, '\n{"prompt": 3}\n{"prompt": "good"}\n[]\n')
    told = []

    def report(chunk, bad):
        told.extend((chunk.number, each.line) for each in bad)

    find_chunks(run, PromptsFile(run.prompts), {}, report)
    assert told == [(16, 19), (21, 21)]
    assert not run.output.exists()


def test_lines_that_were_skipped_are_tried_again_only_where_that_may_end_otherwise(tmp_path):
    values = [{"prompt": f"p {each}"} for each in range(12)]
    values[1], values[6], values[7] = {"prompt": TOO_LONG}, {"prompt": TOO_LONG}, {"image": "later.png"}
    run = asked(tmp_path, *values, images_per_folder=5, batch_size=2, on_error=SKIP)
    assert run_ranks(run) == 9
    assert [(chunk.left, chunk.progress.skipped) for chunk in read_index(run.output).values()] == [
        ((0, 0), 1), ((1, 0), 2), ((0, 0), 0),
    ]  # fmt: skip
    found = contents(run.output)
    assert run_ranks(run) == 0
    assert contents(run.output) == found
    Image.new("RGB", (8, 8)).save(tmp_path / "later.png")
    assert run_ranks(run) == 1
    assert [json.loads(line)["number"] for line in (run.output / FOLDERS[0] / SKIPPED).read_text().splitlines()] == [7]
    # A run that stops at bad lines tries all.
    (first, second, third), part = begin(replace(run, on_error="stop"))
    part.close()
    assert [chunk.left for chunk in (first, second, third)] == [(1, 0), (1, 0), (0, 0)]


def test_nothing_of_somebody_elses_in_a_chunks_folder_is_replaced(tmp_path):
    run, folder = few(tmp_path), tmp_path / "a" / FOLDERS[0]
    folder.parent.mkdir()
    mine = tmp_path / "mine"
    mine.mkdir()
    folder.symlink_to(mine)
    with pytest.raises(UserError, match=f"{FOLDERS[0]} is a link or a file"):
        begin(run)
    folder.unlink()
    folder.write_text("mine")
    with pytest.raises(UserError, match=f"{FOLDERS[0]} is a link or a file"):
        begin(run)
    folder.unlink()
    folder.mkdir()
    (folder / "000007-p-6.png").write_bytes(b"mine")
    with pytest.raises(UserError, match=r"000007-p-6\.png exists already"):
        begin(run)
    assert contents(run.output) == {f"{FOLDERS[0]}/000007-p-6.png": b"mine"}
    assert run_ranks(replace(run, overwrite=True)) == 18
    assert contents(run.output) == whole_run(few(tmp_path, output="b"))
    # Another run, which is told to, forgets all that this one has finished.
    other = replace(run, identity={**IDENTITY, "batch_size": 3}, overwrite=True)
    with rank_manifest(folder, 3) as part:
        part.add({"number": 8, "sha256": ""})
    assert run_ranks(other) == 18


def test_a_file_that_changes_while_it_is_drawn_ends_the_run(tmp_path):
    run = few(tmp_path)
    chunks, part = begin(run)
    part.close()
    append(run, "\nmore")
    file = PromptsFile(run.prompts)
    assert len(read_chunk(run, file, chunks[3])[0]) == 3
    run.prompts.write_text(run.prompts.read_text().replace("p 17", "q 17"))
    with pytest.raises(UserError, match="is not the same file on all machines, or was changed"):
        read_chunk(run, file, chunks[3])


TEXTS = {
    "txt": "\ufeffa\n\n \u3000\nb \r\nc\x85\n\x1c\nd\ne",
    "jsonl": '{"prompt": "a"}\n\n{"prompt": "b",\n"seed": 1}\n{"prompt": "c"}\n' * 3,
    "csv": '\ufeff"prompt",seed\n"a\nb",1\n,\n"c ""d""\r\n\r\n,e",2\r\nf,x\rg,3\r\r\n"h\n" ,4\n"i"j,5\n"k\n\nl",6\n'
           'm,7,8\n\n"n\n\n\n",9\no,"10\n",\n,,,\n"open,11\nmore\n',
}  # fmt: skip


@pytest.mark.parametrize("ending", TEXTS)
def test_chunks_say_together_what_the_file_says(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    path.write_bytes(TEXTS[ending].encode() + b"\xff\n")
    run, file = Run(path, tmp_path), PromptsFile(path)
    whole = file.piece(file.offset, file.line, 1000)
    lines, bad = lines_of(run, whole.entries, 1)
    assert len(lines) + len(bad) == len(whole.entries) > 4
    for most in range(1, len(whole.entries) + 2):
        chunks = chunks_of(replace(run, images_per_folder=most))
        assert [chunk.entries for chunk in chunks[:-1]] == [most] * (len(chunks) - 1)
        read = [read_chunk(run, file, chunk) for chunk in chunks]
        assert [line for some, _ in read for line in some] == lines
        assert [each for _, some in read for each in some] == bad
        assert chunks[-1].offset + chunks[-1].length <= path.stat().st_size


def test_a_file_without_a_prompt_is_refused(tmp_path):
    run = Run(tmp_path / "a.txt", tmp_path / "a")
    run.prompts.write_text("\n \n")
    with pytest.raises(UserError, match="holds no prompt"):
        chunks_of(run)

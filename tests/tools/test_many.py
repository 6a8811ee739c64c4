"""The output folder of many pictures: what a run leaves there, however it ends, and how the next goes on with it."""

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

from ppdiffusers_tome import ToMeConfig
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.batches import form_batches
from ppdiffusers_tome.tools.batch.chunks import INDEX
from ppdiffusers_tome.tools.batch.folder import MANIFEST, SKIPPED, OutputFolder, rank_manifest
from ppdiffusers_tome.tools.batch.gathering import Gathering
from ppdiffusers_tome.tools.batch.line import BadLine
from ppdiffusers_tome.tools.images import write_image
from ppdiffusers_tome.tools.measure.json_lines import Writer
from tools.many_runs import IDENTITY, asked, begin, contents, finish, lines_of, run_ranks, whole_run


def test_batches_follow_from_the_file_alone(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "e.png")
    small, large, edges = {}, {"height": 128}, {"image": "e.png"}
    kinds = [edges, small, large, small, small, large, {"negative_prompt": "n"}, {"ratio": 0.1}]
    lines = lines_of(asked(tmp_path, *kinds))
    found = [[line.number for line in batch.lines] for batch in form_batches(lines, 2)]
    assert found == [[2, 4], [3, 6], [5], [7], [8], [1]]
    assert len(form_batches(lines, 2, all_controlled=True, all_negative=True)) == 5
    # More lines at the end change no batch that was full.
    longer = lines_of(asked(tmp_path, *kinds, small))
    found = [[line.number for line in batch.lines] for batch in form_batches(longer, 2)]
    assert found == [[2, 4], [3, 6], [5, 9], [7], [8], [1]]


def test_a_run_stopped_after_any_write_ends_as_one_that_was_not(tmp_path):
    """The state of the folder after each single write, and after half of it, as a killed process leaves it."""
    run = asked(tmp_path, *[{}] * 4, output="whole")
    lines, uninterrupted = lines_of(run), whole_run(run)
    assert sorted(uninterrupted) == sorted([MANIFEST, "run.json", *(line.file for line in lines)])
    for finished in range(5):
        for torn in ("nothing", "picture", "picture without its line", "line", "damaged line"):
            run = asked(tmp_path, *[{}] * 4, output=f"{finished}-{torn}")
            path = run.output
            _, part = begin(run)
            with part:
                for line in lines[:finished]:
                    finish(run, line, part)
            last = lines[min(finished, 3)]
            if torn == "picture":
                (path / f".{last.file}.123.tmp").write_bytes(b"half")
                (path / f".{MANIFEST}.123.tmp").write_bytes(b"half")
                (path / f".{INDEX}.123.tmp").write_bytes(b"half")
            elif finished < 4 and torn != "nothing":
                with Writer(tmp_path / f"{path.name}.jsonl") as elsewhere:
                    finish(run, last, elsewhere)
                entry = elsewhere.path.read_bytes()[:-1]
                if torn == "line":
                    part.path.write_bytes(part.path.read_bytes() + entry[:-9])
                elif torn == "damaged line":
                    part.path.write_bytes(part.path.read_bytes() + b"\0" * len(entry) + b"\n")
            times = {file.name: file.stat().st_mtime_ns for file in path.glob("*.png")}
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                assert whole_run(run) == uninterrupted, path.name
            is_told = finished < 4 and torn in ("line", "damaged line")
            assert [f"part-0000.jsonl, line {finished + 1} is incomplete" in str(each.message) for each in told] == (
                [True] * is_told
            )
            assert all((path / name).stat().st_mtime_ns == time for name, time in times.items()), "drawn twice"


def test_other_ranks_parts_are_gathered_in_order_and_once(tmp_path):
    uninterrupted = whole_run(asked(tmp_path, *[{}] * 4, output="whole"))
    run = asked(tmp_path, *[{}] * 4)
    bad = {"number": 7, "line": 9, "error": "why", "again": True}
    _, first = begin(run)
    with first, rank_manifest(run.output, 1) as second:
        for line in lines_of(run):
            finish(run, line, second if line.number % 2 else first)
        second.add(bad)
        second.add(json.loads(first.path.read_text().splitlines()[0]))
    folder = OutputFolder(run.output)
    folder.gather()
    assert folder.skipped == {7: BadLine(**bad)}
    found = contents(run.output)
    assert json.loads(found.pop(SKIPPED)) == bad
    del found[INDEX]
    assert found == uninterrupted


def test_a_lost_picture_is_drawn_again_and_a_lost_manifest_found_in_the_pictures(tmp_path):
    run = asked(tmp_path, *[{}] * 3)
    uninterrupted = whole_run(run)
    (run.output / lines_of(run)[1].file).unlink()
    (chunk,), part = begin(run)
    part.close()
    assert (chunk.progress.drawn, chunk.left) == (2, (1, 0))
    assert whole_run(run) == uninterrupted
    (run.output / MANIFEST).unlink()
    assert run_ranks(run) == 0
    assert contents(run.output) == uninterrupted


def test_nothing_that_belongs_to_something_else_is_replaced(tmp_path):
    run = asked(tmp_path, *[{}] * 3)
    path, lines = run.output, lines_of(run)
    path.mkdir()
    (path / lines[2].file).write_bytes(b"mine")
    with pytest.raises(UserError, match="exists already"):
        begin(run)
    assert [file.name for file in path.iterdir()] == [lines[2].file]
    (path / lines[2].file).unlink()
    uninterrupted = whole_run(run)
    # Another run, a changed line, and another's picture where one is to come.
    other = {**IDENTITY, "batch_size": 3}
    with pytest.raises(UserError, match="batch_size=2 then and 3 now"):
        begin(asked(tmp_path, *[{}] * 3, identity=other))
    with pytest.raises(UserError, match=r"line 2 differs from when 000002-p\.png was drawn"):
        begin(asked(tmp_path, {}, {"seed": 9}, {}))
    longer = asked(tmp_path, *[{}] * 4)
    (path / lines_of(longer)[3].file).symlink_to("nowhere")
    with pytest.raises(UserError, match="exists already"):
        begin(longer)
    (path / lines_of(longer)[3].file).unlink()
    assert contents(path) == uninterrupted
    # Asked to, they are.
    (chunk,), part = begin(asked(tmp_path, {}, {"seed": 9}, {}, overwrite=True))
    part.close()
    assert chunk.left == (1, 0)
    (chunk,), part = begin(asked(tmp_path, *[{}] * 3, identity=other, overwrite=True))
    part.close()
    assert chunk.left == (3, 0)


def test_a_folder_of_before_pictures_were_made_to_fit_is_gone_on_with(tmp_path):
    """Its run says nothing of ``fit`` nor of newer settings of ToMe; photos were stretched then."""
    Image.new("RGB", (8, 8)).save(tmp_path / "e.png")
    tome = ToMeConfig(0.3).to_dict()
    then = {**IDENTITY, "tome": {name: value for name, value in tome.items() if name != "proportional"}}
    for lines, fit, is_same in (([{}], "crop", True), ([{"image": "e.png"}], "crop", False),
                                ([{"image": "e.png"}], "stretch", True)):  # fmt: skip
        output = f"{len(lines[0])}-{fit}"
        assert run_ranks(asked(tmp_path, *lines, output=output, identity=then)) == 1
        now = asked(tmp_path, *lines, output=output, identity={**IDENTITY, "fit": fit, "tome": tome})
        if is_same:
            assert run_ranks(now) == 0
        else:
            with pytest.raises(UserError, match=r"made differently \(fit='stretch' then and 'crop' now\)"):
                begin(now)
        other = {**IDENTITY, "fit": fit, "tome": {**tome, "proportional": True}}
        with pytest.raises(UserError, match="tome="):
            begin(asked(tmp_path, *lines, output=output, identity=other))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_second_run_in_the_same_folder_is_refused(tmp_path, rank):
    run = asked(tmp_path, {})
    _, part = begin(run)
    part.close()
    refused = pytest.raises(UserError, match=f"another run writes to .*part-000{rank}.jsonl")
    with rank_manifest(run.output, rank), refused:
        begin(run)
    _, part = begin(run)
    part.close()


def test_the_folder_is_the_runs_until_it_is_closed(tmp_path):
    """Also while it gathers: a run that began then would find its own part gathered and removed."""
    run = asked(tmp_path, *[{}] * 2)
    chunks, part = begin(run)
    with part:
        finish(run, lines_of(run)[0], part)
        Gathering(run, chunks, part).end()
        with pytest.raises(UserError, match="another run writes to"):
            begin(run)
    assert sorted(contents(run.output)) == ["000001-p.png", MANIFEST, "run.json"]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_part_that_is_a_link_is_refused(tmp_path, rank, overwrite):
    """Going on in somebody else's folder must not empty, or add to, what such a link leads to."""
    run = asked(tmp_path, {})
    whole_run(run)
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (run.output / f"manifest.part-000{rank}.jsonl").symlink_to(mine)
    identity = {**IDENTITY, "batch_size": 3} if overwrite else IDENTITY
    with pytest.raises(UserError, match=f"manifest.part-000{rank}.jsonl is a link"):
        begin(asked(tmp_path, {}, identity=identity, overwrite=overwrite))
    assert mine.read_text() == "mine"


def ascii_of_start(text: str) -> str:
    return ascii(text[:40])


@pytest.mark.parametrize(
    "entry",
    ['{"number": [1], "line": 1, "error": "why", "again": true}', '{"number": 1, "line": 1, "error": "why"}',
     '{"number": 1, "line": 1, "error": 2, "again": false}', '{"number": [], "sha256": ""}',
     '{"number": 1}', '{"number": 1, "sha256": null}', "[" * 100_000, "[1]", '{"run": [[]]}'],
    ids=ascii_of_start,
)  # fmt: skip
def test_what_is_no_entry_of_a_part_or_manifest_changes_nothing(tmp_path, entry):
    run = asked(tmp_path, *[{}] * 2)
    uninterrupted = whole_run(run)
    for name in (MANIFEST, SKIPPED, "manifest.part-0000.jsonl", "manifest.part-0003.jsonl"):
        with (run.output / name).open("a") as file:
            file.write(entry + "\n")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert whole_run(run) == uninterrupted


@pytest.mark.parametrize("text", ["[" * 100_000, "no JSON", None], ids=["beyond all depth", "another's", "gone"])
def test_a_folder_whose_run_is_unknown_is_left_as_it_is(text: str | None, tmp_path: Path) -> None:
    asking = asked(tmp_path, {})
    uninterrupted = whole_run(asking)
    run, manifest = asking.output / "run.json", asking.output / MANIFEST
    before = manifest.read_bytes()
    run.write_text(text) if text is not None else run.unlink()
    with pytest.raises(UserError, match=r"holds a run\.json that cannot be read|manifest\.jsonl exists already"):
        begin(asking)
    assert manifest.read_bytes() == before
    assert (run.read_text() if run.exists() else None) == text
    with begin(asked(tmp_path, {}, overwrite=True))[1]:
        pass
    assert whole_run(asking) == uninterrupted


def test_a_temporary_file_that_is_a_link_is_not_followed(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / f".a.png.{os.getpid()}.tmp").symlink_to(mine)
    write_image(tmp_path / "a.png", Image.new("RGB", (8, 8)))
    assert mine.read_text() == "mine"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.png", "mine"]


def test_a_system_without_fcntl_keeps_a_folder_too(tmp_path):
    """As Windows is."""
    code = (
        "import sys; sys.modules['fcntl'] = None; from pathlib import Path\n"
        "from ppdiffusers_tome.tools.batch.folder import OutputFolder, rank_manifest\n"
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


def test_all_but_the_model_needs_no_paddle():
    code = (
        "import sys; from ppdiffusers_tome.tools.batch import gathering, preparing, ranks, share; "
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"paddle", "numpy", "PIL"} & set(done.stdout.split())

"""The output folder of a run: whatever state a killed run leaves, the next continues and replaces nothing foreign."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.output_folder import LOCK, MANIFEST, RUN, OutputFolder
from ppdiffusers_tome.tools.batch.specs import read_specs
from tools.batch_options import make_options

LINES = ["a", "b", "c", "d", "e"]


def complete(folder: Path, lines: list[str], *arguments: str, most: int = 100) -> int:
    """Generate missing images, squares of one color, or so many and be killed; return how many were generated."""
    (folder / "prompts.txt").write_text("\n".join(lines))
    options = make_options(folder / "prompts.txt", *arguments)
    output, (specs, _) = OutputFolder(options), read_specs(options)
    with output.lock():
        output.prepare(specs)
        finished = output.read_finished()
        left = [spec for spec in specs if spec.number not in finished]
        for spec in left[:most]:
            output.write(spec, Image.new("RGB", (8, 8), (spec.number, 0, 0)), {"ratio": 0.5}, [spec.number])
        if len(left) <= most:
            output.finish(specs, [])
    return min(len(left), most)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    """The files of a run that is never stopped."""
    (tmp_path / "whole").mkdir()
    assert complete(tmp_path / "whole", LINES) == 5
    files = contents(tmp_path / "whole" / "outputs")
    images = [f"00000{number}-{letter}.png" for number, letter in enumerate(LINES, start=1)]
    assert sorted(files) == sorted([*images, MANIFEST, RUN])
    assert [json.loads(line)["file"] for line in files[MANIFEST].splitlines()] == images
    return files


@pytest.mark.filterwarnings("ignore:.* incomplete")
@pytest.mark.parametrize("finished", [0, 4])
@pytest.mark.parametrize("manifest", [b"", b'\n{"number": [1]}\n[1]\n\0' + b"[" * 100_000], ids=["whole", "half"])
def test_killed_run_ends_as_one_that_is_not(tmp_path: Path, whole: dict, finished: int, manifest: bytes) -> None:
    complete(tmp_path, LINES, most=finished)
    folder = tmp_path / "outputs"
    (folder / ".000004-d.png.123.tmp").write_bytes(b"half")
    if manifest:
        (folder / MANIFEST).write_bytes(whole[MANIFEST][:700] + manifest)
        (folder / f".{MANIFEST}.123.tmp").write_bytes(b"half")
        (folder / LOCK).touch()
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*.png")}
    assert complete(tmp_path, LINES) == 5 - finished
    assert contents(folder) == whole
    assert all(path.stat().st_mtime_ns == time for path, time in times.items()), "generated twice"


def test_lost_files_come_back(tmp_path: Path, whole: dict[str, bytes]) -> None:
    complete(tmp_path, LINES)
    for lost, generated in (("000005-e.png", 1), (MANIFEST, 0)):
        (tmp_path / "outputs" / lost).unlink()
        assert complete(tmp_path, LINES) == generated
        assert contents(tmp_path / "outputs") == whole


def test_lines_can_be_added_and_a_changed_one_is_noticed(tmp_path: Path) -> None:
    complete(tmp_path, LINES, most=3)
    changed = [*LINES[:2], "x", *LINES[3:]]
    with pytest.raises(UserError, match=r"line 3 differs from when '000003-c\.png' was generated"):
        complete(tmp_path, changed)  # no manifest lists its image, which has another name now
    complete(tmp_path, LINES)
    assert complete(tmp_path, [*LINES, "f"]) == 1
    with pytest.raises(UserError, match="line 1 differs from when"):
        complete(tmp_path, LINES, "--seed", "1")
    assert complete(tmp_path, changed, "--overwrite") == 1
    assert complete(tmp_path, changed) == 0


def test_other_settings_are_refused(tmp_path: Path) -> None:
    complete(tmp_path, LINES)
    before = contents(tmp_path / "outputs")
    with pytest.raises(UserError, match="batch_size=1 then and 3 now"):
        complete(tmp_path, LINES, "--batch-size", "3")
    with pytest.raises(UserError, match="tome="):
        complete(tmp_path, LINES, "--ratio", "0.3")
    (tmp_path / "outputs" / RUN).rename(tmp_path / RUN)
    with pytest.raises(UserError, match=r"manifest\.jsonl exists already"):
        complete(tmp_path, LINES)
    for foreign in ("null", "[1]", "{"):
        (tmp_path / "outputs" / RUN).write_text(foreign)
        with pytest.raises(UserError, match="holds images of another run"):
            complete(tmp_path, LINES)
    (tmp_path / RUN).rename(tmp_path / "outputs" / RUN)
    assert contents(tmp_path / "outputs") == before
    assert complete(tmp_path, LINES, "--batch-size", "3", "--overwrite") == 5
    assert complete(tmp_path, LINES, "--batch-size", "3") == 0


def test_foreign_files_are_not_replaced_and_links_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "outputs" / "000003-c.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    with pytest.raises(UserError, match="exists already"):
        complete(tmp_path, LINES)
    assert contents(tmp_path / "outputs") == {path.name: b"mine"}
    path.unlink()
    (tmp_path / "mine").mkdir()
    for name in (LOCK, path.name):  # through a link
        (path.parent / name).symlink_to(tmp_path / "mine")
        with pytest.raises(UserError, match=r"link|cannot be written|is a folder"):
            complete(tmp_path, LINES, "--overwrite")
        (path.parent / name).unlink()
    assert not list((tmp_path / "mine").iterdir())


def test_second_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("a")
    folder = OutputFolder(make_options(tmp_path / "prompts.txt"))
    with folder.lock(), pytest.raises(UserError, match="another run writes to"):
        complete(tmp_path, LINES, "--overwrite")
    assert complete(tmp_path, LINES) == 5

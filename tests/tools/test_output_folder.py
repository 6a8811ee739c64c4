"""The output folder of a run: whatever state a killed run leaves, the next continues and replaces nothing foreign."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.output_folder import LOCK, MANIFEST, RUN, OutputFolder
from ppdiffusers_tome.tools.batch.specs import read_specs
from tools.batch_options import make_options

LINES = ["a", "b", "c", "d", "e"]
TWO_FOLDERS = ("--images-per-folder", "3")


class Run:
    """A run over prompts whose images are squares of one color."""

    def __init__(self, folder: Path, lines: Sequence[str], *arguments: str) -> None:
        prompts = folder / "prompts.txt"
        prompts.write_text("\n".join(lines))
        options = make_options(prompts, *arguments)
        self.folder = OutputFolder(options)
        self.specs, _ = read_specs(options)

    def complete(self, most: int = 100) -> int:
        """Generate what is missing, or so many and be killed; return how many images were generated."""
        with self.folder.lock():
            self.folder.prepare(self.specs)
            finished = self.folder.read_finished()
            left = [spec for spec in self.specs if spec.number not in finished]
            for spec in left[:most]:
                image = Image.new("RGB", (8, 8), (spec.number, 0, 0))
                self.folder.write(spec, image, {"ratio": 0.5}, [spec.number])
            if len(left) <= most:
                self.folder.finish(self.specs, [])
        return min(len(left), most)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    """The files of a run that is never stopped."""
    folder = tmp_path / "whole"
    folder.mkdir()
    assert Run(folder, LINES, *TWO_FOLDERS).complete() == 5
    return contents(folder / "outputs")


def test_finished_folder_lists_its_images(whole: dict[str, bytes]) -> None:
    images = [f"00000{number}-{letter}.png" for number, letter in enumerate(LINES, start=1)]
    images[3:] = [f"000004-000006/{name}" for name in images[3:]]
    assert sorted(whole) == sorted([*images, MANIFEST, RUN])
    assert [json.loads(line)["file"] for line in whole[MANIFEST].splitlines()] == images


@pytest.mark.parametrize("finished", [0, 2, 4, 5])
@pytest.mark.parametrize("leftover", ["nothing", "half an image", "half a manifest"])
def test_killed_run_ends_as_one_that_is_not(
    tmp_path: Path, whole: dict[str, bytes], finished: int, leftover: str
) -> None:
    run = Run(tmp_path, LINES, *TWO_FOLDERS)
    run.complete(most=finished)
    folder = run.folder.path
    if leftover == "half an image":
        (folder / "000004-000006" / ".000004-d.png.123.tmp").write_bytes(b"half")
    elif leftover == "half a manifest":
        (folder / MANIFEST).write_bytes(whole[MANIFEST][:700] + b'\n{"number": [1]}\n[1]\n\0' + b"[" * 100_000)
        (folder / f".{MANIFEST}.123.tmp").write_bytes(b"half")
        (folder / LOCK).touch()
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*.png")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an incomplete line
        assert run.complete() == 5 - finished
    assert contents(folder) == whole
    assert all(path.stat().st_mtime_ns == time for path, time in times.items()), "generated twice"


@pytest.mark.parametrize("lost", ["000002-b.png", "000004-000006/000005-e.png", MANIFEST, "image cut off"])
def test_lost_files_come_back(tmp_path: Path, whole: dict[str, bytes], lost: str) -> None:
    run = Run(tmp_path, LINES, *TWO_FOLDERS)
    run.complete()
    folder = run.folder.path
    if lost == "image cut off":
        (folder / MANIFEST).unlink()
        (folder / "000002-b.png").write_bytes(whole["000002-b.png"][:-5])
        with pytest.raises(UserError, match="exists already"):  # nobody knows whose it is
            run.complete()
        run = Run(tmp_path, LINES, *TWO_FOLDERS, "--overwrite")
    else:
        (folder / lost).unlink()
    assert run.complete() == (0 if lost == MANIFEST else 1)
    assert contents(folder) == whole


def test_lines_can_be_added_and_a_changed_one_is_noticed(tmp_path: Path) -> None:
    Run(tmp_path, LINES).complete(most=3)
    changed = [*LINES[:2], "x", *LINES[3:]]
    with pytest.raises(UserError, match=r"line 3 differs from when '000003-c\.png' was generated"):
        Run(tmp_path, changed).complete()  # no manifest lists its image, which has another name now
    Run(tmp_path, LINES).complete()
    assert Run(tmp_path, [*LINES, "f"]).complete() == 1
    for lines, arguments in ((changed, ()), (LINES[1:], ()), (LINES, ("--seed", "1"))):
        with pytest.raises(UserError, match="differs from when"):
            Run(tmp_path, lines, *arguments).complete()
    assert Run(tmp_path, changed, "--overwrite").complete() == 1
    assert Run(tmp_path, changed).complete() == 0


def test_other_settings_are_refused(tmp_path: Path) -> None:
    Run(tmp_path, LINES).complete()
    before = contents(tmp_path / "outputs")
    for arguments, words in (
        (["--batch-size", "3"], "batch_size=1 then and 3 now"), (["--steps", "3"], "steps="),
        (["--ratio", "0.3"], "tome="), (["--canny-low", "2"], "canny_low="),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            Run(tmp_path, LINES, *arguments).complete()
    assert contents(tmp_path / "outputs") == before
    assert Run(tmp_path, LINES, "--batch-size", "3", "--overwrite").complete() == 5
    assert Run(tmp_path, LINES, "--batch-size", "3").complete() == 0


@pytest.mark.parametrize("text", ["[" * 100_000, None], ids=["deep", "missing"])
def test_folder_whose_run_is_unknown_is_left_as_it_is(tmp_path: Path, text: str | None) -> None:
    run = Run(tmp_path, LINES)
    run.complete()
    (run.folder.path / RUN).write_text(text) if text is not None else (run.folder.path / RUN).unlink()
    before = contents(run.folder.path)
    with pytest.raises(UserError, match=r"run\.json cannot be read|manifest\.jsonl exists already"):
        run.complete()
    assert contents(run.folder.path) == before
    assert Run(tmp_path, LINES, "--overwrite").complete() in (0, 5)


@pytest.mark.parametrize("place", ["000003-c.png", "000004-000006/000004-d.png"])
def test_foreign_files_are_not_replaced(tmp_path: Path, place: str) -> None:
    run = Run(tmp_path, LINES, *TWO_FOLDERS)
    path = run.folder.path / place
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    with pytest.raises(UserError, match="exists already"):
        run.complete()
    assert contents(run.folder.path) == {place: b"mine"}
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(UserError, match="exists already"):
        run.complete()
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match="is a folder"):
        Run(tmp_path, LINES, *TWO_FOLDERS, "--overwrite").complete()


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_nothing_is_written_through_a_link(tmp_path: Path, overwrite: tuple[str, ...]) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "text").write_text("mine")
    run = Run(tmp_path, LINES, *TWO_FOLDERS, *overwrite)
    run.folder.path.mkdir()
    for name, target in (("000004-000006", mine), (LOCK, mine / "text")):
        link = run.folder.path / name
        link.symlink_to(target)
        with pytest.raises(UserError, match=r"link|cannot be written"):
            run.complete()
        link.unlink()
    (run.folder.path / RUN).symlink_to(mine / "text")
    if overwrite:
        run.complete()
    assert contents(mine) == {"text": b"mine"}


def test_second_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, LINES)
    with run.folder.lock(), pytest.raises(UserError, match="another run writes to"):
        Run(tmp_path, LINES, "--overwrite").complete()
    assert run.complete() == 5
    assert not (run.folder.path / LOCK).exists()

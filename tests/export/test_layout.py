"""An export replaces an export; whatever else is in its folder stays, or nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppdiffusers_tome import ToMeValueError
from ppdiffusers_tome.export.layout import (
    EXPORT,
    INDEX,
    PROGRAM,
    PROGRAMS,
    SETTINGS,
    publish,
    require_folder,
)

PADDLE_2, PADDLE_3 = (".pdmodel", ".pdiparams"), (".json", ".pdiparams")


def write(folder: Path, text: str, suffixes: tuple[str, ...] = PADDLE_3, *more: str) -> dict[str, str]:
    """Write files of an export that hold a text, all but ``export.json``."""
    names = [INDEX, "scheduler/scheduler_config.json", "tokenizer/vocab.json", *more]
    names += [f"{part}/{PROGRAM}{suffix}" for part in PROGRAMS for suffix in suffixes]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return dict.fromkeys(names, text)


def export(work: Path, folder: Path, text: str, *kinds: Any, overwrite: bool = True) -> dict[str, str]:
    """Write an export and move it into its folder."""
    names = write(work, text, *kinds)
    publish(work, folder, {"by": text}, overwrite=overwrite)
    return names


def read(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != EXPORT)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


@pytest.fixture
def work(tmp_path):
    return tmp_path / "work"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "folder"


def test_an_earlier_export_is_replaced_and_nothing_else(work, folder):
    export(work, folder, "old", (*PADDLE_2, ".old"), SETTINGS, "tokenizer/merges.txt", overwrite=False)
    kept = dict.fromkeys(("unet/model_state.pdparams", "unet/more/inference.json", "notes.txt"), "kept")
    for name, content in kept.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    before = read(folder)
    with pytest.raises(ToMeValueError, match=f"{INDEX} exists already; .*, or replace it with overwrite=True"):
        export(work, folder, "new", overwrite=False)
    assert read(folder) == before
    new = export(work, folder, "new", PADDLE_3, "tome.unet.json")
    assert read(folder) == {**kept, **new}
    assert json.loads((folder / EXPORT).read_text()) == {"by": "new", "files": [*sorted(new, key=Path), EXPORT]}


@pytest.mark.parametrize("name", [INDEX, SETTINGS, EXPORT, "tokenizer/vocab.json", "unet/inference.json"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_of_no_export_is_refused(name, overwrite, work, folder):
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text('{"rows": []}')
    with pytest.raises(ToMeValueError, match=f"{name} belongs to no earlier result.*choose another folder"):
        export(work, folder, "new", PADDLE_3, SETTINGS, overwrite=overwrite)
    if "/" not in name:  # before any work
        with pytest.raises(ToMeValueError, match=f"{name} belongs to no earlier result"):
            require_folder(folder, overwrite=overwrite)
    assert [path.name for path in folder.rglob("*") if path.is_file()] == [Path(name).name]


@pytest.mark.parametrize("is_link", [True, False])
def test_a_linked_subfolder_or_a_file_in_its_place_is_refused(is_link, work, folder, tmp_path):
    export(work, folder, "old")
    elsewhere = tmp_path / "elsewhere"
    (folder / "unet").rename(elsewhere)
    if is_link:
        (folder / "unet").symlink_to(elsewhere)
    else:
        (folder / "unet").write_text("in the way")
    before = read(folder), read(elsewhere)
    with pytest.raises(ToMeValueError, match="unet is a link or a file"):
        require_folder(folder, overwrite=True)
    with pytest.raises(ToMeValueError, match="unet is a link or a file"):
        export(work, folder, "new")
    assert (read(folder), read(elsewhere)) == before


def test_linked_files_are_replaced_and_not_what_they_link_to(work, folder, tmp_path):
    export(work, folder, "old")
    elsewhere = tmp_path / "weights"
    elsewhere.write_text("elsewhere")
    (folder / "unet" / "inference.json").unlink()
    (folder / "unet" / "inference.json").symlink_to(elsewhere)
    new = export(work, folder, "new")
    assert (read(folder), elsewhere.read_text()) == (new, "elsewhere")


def test_files_outside_of_the_folder_are_never_removed(work, folder, tmp_path):
    """An ``export.json`` of somebody else may name any file."""
    export(work, folder, "old")
    outside = tmp_path / "outside"
    outside.write_text("kept")
    described = json.loads((folder / EXPORT).read_text())
    (folder / EXPORT).write_text(json.dumps({**described, "files": [*described["files"], "../outside", str(outside)]}))
    export(work, folder, "new")
    assert outside.read_text() == "kept"


@pytest.mark.parametrize("moved", range(12))
def test_stopping_midway_leaves_no_pipeline(moved, work, folder, monkeypatch):
    export(work, folder, "old", PADDLE_2)
    (folder / "unet" / "model_state.pdparams").write_text("kept")
    moves, replace_file = iter(range(100)), Path.replace

    def replace_few(path: Path, target: Path) -> Path:
        if next(moves) == moved:
            raise OSError(28, "No space left on device")
        return replace_file(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", replace_few)
        with pytest.raises(OSError, match=f"No space left on device.* has no {INDEX}.* with overwrite=True"):
            export(work, folder, "new")
    assert not (folder / INDEX).exists()
    newer = export(work, folder, "newer")
    assert read(folder) == {**newer, "unet/model_state.pdparams": "kept"}

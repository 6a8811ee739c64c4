"""An export replaces an export; where anything else is in its folder, nothing is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ppdiffusers_tome import ToMeValueError
from ppdiffusers_tome.export.folder import EXPORT, INDEX, PROGRAM, PROGRAMS, SETTINGS, publish, require_folder
from ppdiffusers_tome.files import prepare_folder

PADDLE_2, PADDLE_3 = (".pdmodel", ".pdiparams"), (".json", ".pdiparams")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "folder"


def export(folder: Path, text: str, suffixes: tuple[str, ...] = PADDLE_3, *more: str, overwrite: bool = True) -> dict:
    """Write an export whose files hold a text, and move it into its folder; return its files."""
    names = [INDEX, "scheduler/scheduler_config.json", "tokenizer/vocab.json", *more]
    names += [f"{part}/{PROGRAM}{suffix}" for part in PROGRAMS for suffix in suffixes]
    shutil.rmtree(folder.with_name("work"), ignore_errors=True)
    for path in (folder.with_name("work") / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    require_folder(folder, overwrite=overwrite)
    publish(folder.with_name("work"), folder, {"by": text})
    return dict.fromkeys(names, text)


def read(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != EXPORT)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def test_an_earlier_export_is_replaced(folder, tmp_path):
    export(folder, "old", (*PADDLE_2, ".old"), SETTINGS, "tokenizer/merges.txt", overwrite=False)
    before = read(folder)
    with pytest.raises(ToMeValueError, match=r"folder has an export; .*, or replace it with overwrite=True"):
        export(folder, "new", overwrite=False)
    assert read(folder) == before
    # Links are replaced, and not what they link to; an ``export.json`` of somebody else may name any file.
    outside = tmp_path / "outside"
    outside.write_text("elsewhere")
    (folder / "scheduler" / "scheduler_config.json").unlink()
    (folder / "scheduler" / "scheduler_config.json").symlink_to(outside)
    described = json.loads((folder / EXPORT).read_text())
    (folder / EXPORT).write_text(json.dumps({**described, "files": [*described["files"], "../outside", str(outside)]}))
    new = export(folder, "new", PADDLE_3)
    assert read(folder) == new
    assert outside.read_text() == "elsewhere"
    assert json.loads((folder / EXPORT).read_text()) == {"by": "new", "files": [*sorted(new, key=Path), EXPORT]}


@pytest.mark.parametrize("name", [INDEX, "tokenizer/vocab.json", "unet/model_state.pdparams", "notes.txt"])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("has_export", [False, True])
def test_a_file_of_no_export_is_refused(name, overwrite, has_export, folder):
    if has_export and name in export(folder, "old"):
        return
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text('{"rows": []}')
    before = read(folder)
    with pytest.raises(ToMeValueError, match=f"{name} belongs to no earlier export.*choose another folder"):
        export(folder, "new", PADDLE_3, SETTINGS, overwrite=overwrite)
    assert read(folder) == before


@pytest.mark.parametrize("is_link", [True, False])
def test_a_linked_subfolder_or_a_file_in_its_place_is_refused(is_link, folder, tmp_path):
    export(folder, "old")
    elsewhere = tmp_path / "elsewhere"
    (folder / "unet").rename(elsewhere)
    if is_link:
        (folder / "unet").symlink_to(elsewhere)
    else:
        (folder / "unet").write_text("in the way")
    before = read(folder), read(elsewhere)
    with pytest.raises(ToMeValueError, match="unet belongs to no earlier export"):
        require_folder(folder, overwrite=True)
    with pytest.raises(ToMeValueError, match="unet is a link or a file"):
        prepare_folder(folder, ["unet/deeper/file"], overwrite=True)
    assert (read(folder), read(elsewhere)) == before


@pytest.mark.parametrize("moved", [0, 1, 5, 11])
def test_stopping_midway_leaves_no_pipeline(moved, folder, monkeypatch):
    export(folder, "old", PADDLE_2)
    moves, replace_file = iter(range(100)), Path.replace

    def replace_few(path: Path, target: Path) -> Path:
        if target.parent != path.parent and next(moves) == moved:
            raise KeyboardInterrupt
        return replace_file(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", replace_few)
        with pytest.raises(KeyboardInterrupt):
            export(folder, "new")
    assert not (folder / INDEX).exists()
    newer = export(folder, "newer")
    assert read(folder) == newer

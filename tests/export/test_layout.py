"""An export replaces an export; whatever else is in its folder stays, or nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppdiffusers_tome import ToMeValueError
from ppdiffusers_tome.export.layout import (
    EXPORT,
    INDEX,
    PROGRAM,
    PROGRAMS,
    SETTINGS,
    list_files,
    publish,
    require_folder,
)

DEPLOYED, MODEL = "PaddleInferStableDiffusionPipeline", "StableDiffusionPipeline"


def write(folder: Path, text: str, ends: tuple[str, ...] = (".json", ".pdiparams"), *more: str) -> dict[str, str]:
    """Files as an export has them; each holds ``text``, and more where an export's own is read again."""
    names = ["scheduler/scheduler_config.json", "tokenizer/vocab.json", *more]
    names += [f"{part}/{PROGRAM}{end}" for part in PROGRAMS for end in ends]
    files = dict.fromkeys(names, text)
    files[INDEX] = json.dumps({"_class_name": DEPLOYED, "by": text})
    files[EXPORT] = json.dumps({"components": [], "by": text})
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return files


def read(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in list_files(folder)}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return tmp_path / "work"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "folder"


def test_an_earlier_export_is_replaced_and_nothing_else(work: Path, folder: Path) -> None:
    of_paddle_2 = (".pdmodel", ".pdiparams", ".pdiparams.info", ".onnx")
    write(folder, "old", of_paddle_2, SETTINGS, "tokenizer/added_tokens.json", "tokenizer/merges.txt")
    others = ("unet/model_state.pdparams", "unet/config.json", "unet/more/inference.json", "notes.txt",
              "outputs/tome.json", "tokenizer/README.md")  # fmt: skip
    kept = dict.fromkeys(others, "kept")
    for name, content in kept.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    new = write(work, "new", (".json", ".pdiparams"), "tome.unet.json", "tome.controlnet.json")
    before = read(folder)
    with pytest.raises(ToMeValueError, match=f"{INDEX} exists already; .*, or replace it with overwrite=True"):
        publish(work, folder, overwrite=False)
    assert read(folder) == before
    publish(work, folder, overwrite=True)
    assert read(folder) == {**kept, **new}
    newer = write(work, "newer", (".json", ".pdiparams"), SETTINGS)
    publish(work, folder, overwrite=True)
    assert read(folder) == {**kept, **newer}


@pytest.mark.parametrize("kind", [MODEL, DEPLOYED, None])
def test_a_models_own_folder_is_refused(kind: str | None, work: Path, folder: Path) -> None:
    write(work, "new")
    write(folder, "model")
    (folder / INDEX).write_text("no JSON" if kind is None else json.dumps({"_class_name": kind}))
    if kind == MODEL:
        (folder / EXPORT).write_text(json.dumps({"components": []}))  # an export, and a model saved over it
    else:
        (folder / EXPORT).unlink()
    before = read(folder)
    words = rf"no export wrote \({kind or 'without a class'}\).* choose another folder"
    for overwrite in (False, True):
        with pytest.raises(ToMeValueError, match=words):
            publish(work, folder, overwrite=overwrite)
    assert read(folder) == before


@pytest.mark.parametrize("name", ["tokenizer/merges.txt", "tokenizer/vocab.txt", "unet/inference.pdmodel"])
def test_files_like_an_exports_are_no_exports(name: str, work: Path, folder: Path) -> None:
    write(work, "new", (".json",), "tokenizer/vocab.txt")
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("somebody's")
    (folder / EXPORT).write_text('{"run": {}, "rows": [], "seconds": {}}')  # of bench export
    before = read(folder)
    for overwrite in (False, True):
        with pytest.raises(ToMeValueError, match=f"{name} belongs to no export.*, or move the file away"):
            publish(work, folder, overwrite=overwrite)
    assert read(folder) == before


def test_settings_and_findings_of_other_commands_are_replaced_if_asked(work: Path, folder: Path) -> None:
    new = write(work, "new", (".json",), SETTINGS)
    folder.mkdir()
    for name in (EXPORT, SETTINGS):
        (folder / name).write_text("{}")
    with pytest.raises(ToMeValueError, match="exists already"):
        publish(work, folder, overwrite=False)
    publish(work, folder, overwrite=True)
    assert read(folder) == new


def test_a_linked_subfolder_is_refused(work: Path, folder: Path, tmp_path: Path) -> None:
    write(work, "new")
    write(folder, "old")
    elsewhere = tmp_path / "elsewhere"
    (folder / "unet").rename(elsewhere)
    (folder / "unet").symlink_to(elsewhere)
    before = read(folder), read(elsewhere)
    with pytest.raises(ToMeValueError, match="unet is a link or a file"):
        publish(work, folder, overwrite=True)
    assert (read(folder), read(elsewhere)) == before


def test_linked_files_are_replaced_and_not_what_they_link_to(work: Path, folder: Path, tmp_path: Path) -> None:
    new = write(work, "new")
    write(folder, "old", (".json", ".pdmodel", ".pdiparams"))
    elsewhere = tmp_path / "weights"
    elsewhere.write_text("elsewhere")
    for end in (".json", ".pdmodel"):
        (folder / "unet" / f"inference{end}").unlink()
        (folder / "unet" / f"inference{end}").symlink_to(elsewhere)
    publish(work, folder, overwrite=True)
    assert elsewhere.read_text() == "elsewhere"
    assert read(folder) == new


def test_a_link_to_nothing_is_not_written_over_unasked(work: Path, folder: Path, tmp_path: Path) -> None:
    write(work, "new")
    folder.mkdir()
    (folder / INDEX).symlink_to(tmp_path / "gone")
    with pytest.raises(ToMeValueError, match="no export wrote"):
        publish(work, folder, overwrite=False)
    (folder / INDEX).rename(folder / EXPORT)
    with pytest.raises(ToMeValueError, match=r"export\.json exists already"):
        publish(work, folder, overwrite=False)


@pytest.mark.parametrize(
    ("name", "words"),
    [("unet", "unet is a link or a file, and an export"), ("unet/inference.json/x", "inference.json is a folder")],
)
def test_what_is_in_the_way_is_told_before_any_work(name: str, words: str, folder: Path) -> None:
    write(folder, "old", ())
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("in the way")
    before = read(folder)
    with pytest.raises(ToMeValueError, match=words):
        require_folder(folder, overwrite=True)
    assert read(folder) == before


@pytest.mark.parametrize("moved", range(12))
def test_stopping_midway_leaves_no_pipeline(
    moved: int, work: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "old", (".pdmodel", ".pdiparams"))
    (folder / "unet" / "model_state.pdparams").write_text("kept")
    new = write(work, "new")
    moves, replace_file = iter(range(len(new))), Path.replace

    def replace_few(path: Path, target: Path) -> Path:
        if next(moves) == moved:
            raise OSError(28, "No space left on device")
        return replace_file(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", replace_few)
        with pytest.raises(OSError, match=f"No space left on device.* has no {INDEX}.* with overwrite=True"):
            publish(work, folder, overwrite=True)
    assert not (folder / INDEX).exists()
    new = write(work, "newer")
    publish(work, folder, overwrite=True)
    assert read(folder) == {**new, "unet/model_state.pdparams": "kept"}

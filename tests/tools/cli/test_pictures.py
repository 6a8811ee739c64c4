"""Picture and result files: their names, and that they are whole or not there."""

from __future__ import annotations

import json
import math
import os

import pytest
from PIL import Image

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.files import prepare_folder, write_atomically, write_json
from ppdiffusers_tome.tools.images import image_file_name, read_settings, slugify, write_image

PICTURE = Image.new("RGB", (8, 8), (200, 30, 30))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("A red circle!", "a-red-circle"),
        ("../../etc/passwd", "etc-passwd"),
        ("crème brûlée", "creme-brulee"),
        ("一只猫", "一只猫"),
        ("一只猫\uff0c在桌子上。", "一只猫-在桌子上"),
        ("\uff21\uff22 №5 ½", "ab-no5-1-2"),
        ("Ёлка й ガ 고양이 İÉ", "ёлка-й-ガ-고양이-ie"),
        ("हिन्दी ภาษาไทย", "हिन्दी-ภาษาไทย"),
        ("قطة/كلب\u202e", "قطة-كلب"),
        ("🙂 \ud800 \ue000", "picture"),
        ("猫" * 100, "猫" * 40),
        ("-rf / *", "rf"),
        ("con\0trol\nand \\ tabs\t", "con-trol-and-tabs"),
        ("word " * 50, "word-word-word-word-word-word-word-word-word-word-word-word"),
    ],
)
def test_slug_is_safe_in_any_file_system(prompt, expected):
    assert slugify(prompt) == expected


def test_name_is_number_and_slug():
    assert image_file_name(12, "a star") == "0012-a-star.png"


def test_settings_survive_the_file(tmp_path):
    settings = {"prompt": "une étoile 一 \n\"", "seed": 2**62, "ratio": 0.1, "tome": None, "nested": {"a": [1, 2]}}
    write_image(tmp_path / "a.png", PICTURE, settings)
    assert read_settings(tmp_path / "a.png") == settings
    with Image.open(tmp_path / "a.png") as back:
        assert back.tobytes() == PICTURE.tobytes()


def test_picture_without_settings_says_so(tmp_path):
    PICTURE.save(tmp_path / "a.png")
    with pytest.raises(UserError, match="holds no settings"):
        read_settings(tmp_path / "a.png")


@pytest.mark.parametrize("fault", [OSError(28, "No space left"), RuntimeError("encoder"), KeyboardInterrupt()])
def test_failed_write_leaves_nothing(tmp_path, fault):
    def write(file):
        file.write(b"half of it")
        raise fault

    with pytest.raises((UserError, RuntimeError, KeyboardInterrupt)):
        write_atomically(tmp_path / "a.png", write, overwrite=False)
    assert list(tmp_path.iterdir()) == []


def test_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def write(file):
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\); make room"):
        write_atomically(path, write, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]
    assert path.read_bytes() == b"old"


def test_file_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    path, synced, fsync = tmp_path / "a.png", [], os.fsync

    def watched(descriptor):
        synced.append(path.exists())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    write_image(path, PICTURE)
    assert synced == [False, True]  # the file before it gets its name, the folder after
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


def test_file_that_appears_meanwhile_is_kept(tmp_path):
    path = tmp_path / "a.png"

    def write(file):
        path.write_bytes(b"somebody else's")

    with pytest.raises(UserError, match="exists already"):
        write_atomically(path, write, overwrite=False)
    assert path.read_bytes() == b"somebody else's"
    assert len(list(tmp_path.iterdir())) == 1


def test_folder_is_made_and_left_empty(tmp_path):
    paths = prepare_folder(tmp_path / "a" / "b", ["x.png"], overwrite=False)
    assert paths == [tmp_path / "a" / "b" / "x.png"]
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_folder_in_the_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "x.png").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        prepare_folder(tmp_path, ["x.png"], overwrite=True)


def test_results_are_json_that_all_read(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"psnr_db": None}, overwrite=False)
    assert json.loads(path.read_text()) == {"psnr_db": None}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"psnr_db": math.inf}, overwrite=True)
    with pytest.raises(UserError, match="exists already"):
        write_json(path, {}, overwrite=False)
    assert json.loads(path.read_text()) == {"psnr_db": None}

"""What is loaded is what was meant: the bundled files by their sums, no pickle or code that nobody asked for."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools import demo_model
from ppdiffusers_tome.tools.generation import model_sources
from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
from ppdiffusers_tome.tools.generation.model_sources import find_controlnet, find_model

DEMO = demo_model.MODEL.parent
UNET = "diffusion_paddle_model.safetensors"
Change = Callable[[Path], object]


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("model/unet/config.json", flip_a_bit, "is damaged"),
        ("controlnet/diffusion_paddle_model.safetensors", flip_a_bit, "is damaged"),
        ("model/vae/config.json", os.remove, "is missing"),
        ("dit/None.py", lambda path: path.write_bytes(b"{}"), "does not belong there"),
    ],
)
def test_bundled_files_are_compared_with_their_sums(
    file: str, change: Change, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, attribute in (("model", "MODEL"), ("controlnet", "CONTROLNET"), ("dit", "DIT")):
        shutil.copytree(DEMO / name, tmp_path / name)
        monkeypatch.setattr(model_sources, attribute, tmp_path / name)

    def find_all() -> bool:
        transformer = find_model("bundled-dit", any_kind=True)
        return find_model("bundled").bundled and find_controlnet("bundled").bundled and transformer.bundled

    assert find_all()
    model_sources.check_sums.cache_clear()
    change(tmp_path / file)
    with pytest.raises(UserError, match=rf"{words}.*install the package again: pip install"):
        find_all()


class Canary:
    """An object that makes a file when it is unpickled."""

    def __init__(self, song: Path) -> None:
        self.song = song

    def __reduce__(self) -> tuple:
        return Path.touch, (self.song,)


def put_pickles(*names: str) -> Change:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).write_bytes(pickle.dumps({"weight": Canary(folder.parent / "song")}))

    return change


def put_index(name: str, shard: str) -> Change:
    def change(folder: Path) -> None:
        put_pickles("unet/shard.pdparams")(folder)
        (folder / "unet" / name).write_text(json.dumps({"metadata": {}, "weight_map": {"x": shard}}))

    return change


def rename(name: str, *pickles: str) -> Change:
    def change(folder: Path) -> None:
        (folder / "unet" / UNET).rename(folder / "unet" / name)
        put_pickles(*pickles)(folder)

    return change


def put_code(name: str, **index: object) -> Change:
    def change(folder: Path) -> None:
        (folder / name).write_text(f"open({str(folder.parent / 'song')!r}, 'w')\n")
        content = json.loads((folder / "model_index.json").read_text()) | index
        (folder / "model_index.json").write_text(json.dumps(content))

    return change


def link_vae(folder: Path) -> None:
    (folder / "vae").rename(folder.parent / "elsewhere")
    (folder / "vae").symlink_to(folder.parent / "elsewhere")
    (folder / "unet" / "again").symlink_to(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO / "model", tmp_path / "model", ignore=shutil.ignore_patterns("SHA256SUMS")))


@pytest.mark.parametrize(
    "change",
    [
        put_pickles(*(f"{part}/model_state.pdparams" for part in ("unet", "vae", "text_encoder"))),
        put_pickles("unet/diffusion_pytorch_model.bin", "vae/pytorch_model.bin", "unet/model_state.fp16.pdparams"),
        put_index("model_state.pdparams.index.json", "shard.pdparams"),
        rename("diffusion_paddle_model.fp16.safetensors", "unet/model_state.pdparams"),
        link_vae,
    ],
)
def test_pickles_beside_safetensors_stay_closed(change: Change, folder: Path) -> None:
    change(folder)
    source = find_model(str(folder))
    assert source.pickles == ()
    assert load_pipeline(source).unet.parameters()
    assert not (folder.parent / "song").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put_index(f"{UNET}.index.json", "shard.pdparams"), "names 'shard.pdparams'"),
        (put_index(f"{UNET}.index.json", f"../vae/{UNET}"), "not a safetensors file next to"),
        (rename("other.safetensors", "unet/model_state.pdparams"), "model_state.pdparams would be loaded instead"),
        (put_code("None.py", vae=["None", "AutoencoderKL"]), "holds code, None.py"),
        (lambda folder: (link_vae(folder), put_code("vae/mine.PY")(folder)), "holds code, vae/mine.PY"),
        (put_code("../mine.py", vae=["../../mine", "AutoencoderKL"]), "'../../mine', 'AutoencoderKL'], which"),
        (put_code("../mine.py", _class_name=["../mine", "Mine"]), "holds _class_name=['../mine', 'Mine'], which"),
        (put_code("../mine.py", **{"../vae": ["ppdiffusers", "AutoencoderKL"]}), "holds ../vae="),
    ],
)
def test_code_and_pickles_that_would_run_are_refused(change: Change, words: str, folder: Path) -> None:
    change(folder)
    with pytest.raises(UserError) as raised:
        find_model(str(folder))
    assert words in str(raised.value)
    assert not (folder.parent / "song").exists()


def test_pickles_alone_are_loaded_with_a_warning(folder: Path) -> None:
    (folder / "unet" / UNET).unlink()
    put_pickles("unet/model_state.pdparams")(folder)
    source = find_model(str(folder))
    with pytest.warns(UserWarning, match="is a pickle, which can run any code"), pytest.raises(UserError):
        load_pipeline(source)
    assert (folder.parent / "song").exists()  # which is why there is a warning

"""What is loaded is what was meant: the bundled files by their sums, no pickle or code that nobody asked for."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools import demo_model
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation import model_sources
from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
from ppdiffusers_tome.tools.generation.model_sources import find_controlnet, find_model
from tools.cli.conftest import PROMPT

DEMO = demo_model.MODEL.parent
UNET = "diffusion_paddle_model.safetensors"
Change = Callable[[Path], object]


class Pickles:
    """The names that Python looks up in pickles; a hook of the interpreter cannot be removed, only muted."""

    names: list[str] | None = None

    @classmethod
    def listen(cls, event: str, arguments: tuple) -> None:
        if event == "pickle.find_class" and cls.names is not None:
            cls.names.append(".".join(map(str, arguments)))


sys.addaudithook(Pickles.listen)


@pytest.fixture
def pickle_names() -> Iterator[list[str]]:
    Pickles.names = []
    yield Pickles.names
    Pickles.names = None


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("model/unet/config.json", flip_a_bit, "is damaged"),
        ("controlnet/diffusion_paddle_model.safetensors", flip_a_bit, "is damaged"),
        ("dit/SHA256SUMS", flip_a_bit, ""),
        ("model/vae/config.json", os.remove, "is missing"),
        ("model/None.py", lambda path: path.write_bytes(b"{}"), "does not belong there"),
    ],
)
def test_bundled_files_are_compared_with_their_sums(
    file: str, change: Change, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, attribute in (("model", "MODEL"), ("controlnet", "CONTROLNET"), ("dit", "DIT")):
        shutil.copytree(DEMO / name, tmp_path / name)
        monkeypatch.setattr(model_sources, attribute, tmp_path / name)

    def find_bundled() -> bool:
        dit = find_model("bundled-dit", class_labels=True)
        return all(source.bundled for source in (find_model("bundled"), find_controlnet("bundled"), dit))

    (tmp_path / "model" / ".DS_Store").write_bytes(b"x")  # of a file manager
    assert find_bundled()
    model_sources.check_sums.cache_clear()
    change(tmp_path / file)
    with pytest.raises(UserError, match=rf"{words}.*install the package again: pip install"):
        find_bundled()
    if file.startswith("model"):
        assert main(["generate", "--prompt", PROMPT, "--output", str(tmp_path / "out")]) == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


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
def test_pickles_beside_safetensors_stay_closed(change: Change, folder: Path, pickle_names: list[str]) -> None:
    change(folder)
    source = find_model(str(folder))
    assert source.pickles == ()
    assert load_pipeline(source).unet.parameters()
    assert pickle_names == []
    assert not (folder.parent / "song").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put_index(f"{UNET}.index.json", "shard.pdparams"), "names 'shard.pdparams'"),
        (put_index(f"{UNET}.index.json", f"../vae/{UNET}"), "not a safetensors file next to"),
        (rename("other.safetensors", "unet/model_state.pdparams"), "model_state.pdparams would be loaded instead"),
        (put_code("None.py", vae=["None", "AutoencoderKL"]), "holds code, None.py"),
        (put_code("vae/mine.PY"), "holds code, vae/mine.PY"),  # the same file where capitals do not count
        (lambda folder: (link_vae(folder), put_code("vae/mine.py")(folder)), "holds code, vae/mine.py"),
        (put_code("../mine.py", vae=["../../mine", "AutoencoderKL"]), "'../../mine', 'AutoencoderKL'], which"),
        (put_code("../mine.py", _class_name=["../mine", "Mine"]), "holds _class_name=['../mine', 'Mine'], which"),
        (put_code("../mine.py", **{"../vae": ["ppdiffusers", "AutoencoderKL"]}), "holds ../vae="),
    ],
)
def test_code_and_pickles_that_would_run_are_refused(
    change: Change, words: str, folder: Path, pickle_names: list[str]
) -> None:
    change(folder)
    with pytest.raises(UserError) as raised:
        find_model(str(folder))
    assert words in str(raised.value)
    assert pickle_names == []
    assert not (folder.parent / "song").exists()


def test_a_controlnet_is_checked_alike(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DEMO / "controlnet", tmp_path / "controlnet"))
    (folder / "mine.py").write_text("")
    with pytest.raises(UserError, match=r"holds code, mine\.py"):
        find_controlnet(str(folder))
    (folder / "mine.py").unlink()
    put_pickles("model_state.pdparams")(folder)
    assert find_controlnet(str(folder)).pickles == ()
    (folder / UNET).unlink()
    assert find_controlnet(str(folder)).pickles == (folder / "model_state.pdparams",)


def test_pickles_alone_are_loaded_with_a_warning(folder: Path) -> None:
    (folder / "unet" / UNET).unlink()
    put_pickles("unet/model_state.pdparams")(folder)
    source = find_model(str(folder))
    with pytest.warns(UserWarning, match="is a pickle, which can run any code"), pytest.raises(UserError):
        load_pipeline(source)
    assert (folder.parent / "song").exists()  # which is why there is a warning

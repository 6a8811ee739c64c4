"""What is loaded is what was meant: the bundled files by their sums, no pickle or code that nobody asked for."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools import demo_model
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.demo_model import SUMS, check_sums
from ppdiffusers_tome.tools.generation import model_sources
from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
from ppdiffusers_tome.tools.generation.model_sources import BUNDLED_DIT, ModelSource, find_controlnet, find_model
from tools.cli.conftest import PROMPT, SMALL


def find_dit(name: str) -> ModelSource:
    return find_model(BUNDLED_DIT if name == "bundled" else name, class_labels=True)


FOLDERS = {"model": find_model, "controlnet": find_controlnet, "dit": find_dit}
DEMO = demo_model.MODEL.parent
FILES = [
    (each, path.relative_to(DEMO / each).as_posix())
    for each in FOLDERS for path in sorted((DEMO / each).rglob("*")) if path.is_file()
]  # fmt: skip


class Unpickled:
    """What Python was asked for while it read pickles; a hook of the interpreter cannot be taken off, only muted."""

    names: list[str] | None = None

    @classmethod
    def listen(cls, event: str, arguments: tuple) -> None:
        if event == "pickle.find_class" and cls.names is not None:
            cls.names.append(".".join(map(str, arguments)))


sys.addaudithook(Unpickled.listen)


@pytest.fixture
def unpickled() -> Any:
    Unpickled.names = []
    yield Unpickled.names
    Unpickled.names = None


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all that is bundled, and what the program takes for bundled."""
    for each in FOLDERS:
        shutil.copytree(DEMO / each, tmp_path / each)
    monkeypatch.setattr(model_sources, "MODEL", tmp_path / "model")
    monkeypatch.setattr(model_sources, "CONTROLNET", tmp_path / "controlnet")
    monkeypatch.setattr(model_sources, "DIT", tmp_path / "dit")
    return tmp_path


class TestBundled:
    def test_as_it_is_it_is_taken(self, bundle: Path) -> None:
        for each, find in FOLDERS.items():
            assert find("bundled").bundled
            assert find("bundled").folder == bundle / each
            assert find(str(bundle / each)).bundled

    @pytest.mark.parametrize(("folder", "name"), FILES, ids="/".join)
    def test_one_other_bit_is_noticed(self, folder: str, name: str, bundle: Path) -> None:
        path = bundle / folder / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"install the package again: pip install") as raised:
            FOLDERS[folder]("bundled")
        assert str(bundle / folder) in str(raised.value)

    @pytest.mark.parametrize("name", [SUMS, "unet/config.json", "vae/diffusion_paddle_model.safetensors"])
    def test_a_missing_file_is_named(self, name: str, bundle: Path) -> None:
        (bundle / "model" / name).unlink()
        with pytest.raises(UserError, match=rf"{name} of the bundled model (is missing|cannot be read)"):
            find_model("bundled")

    @pytest.mark.parametrize("name", ["None.py", "unet/model_state.pdparams.index.json", "vae/model_state.pdparams"])
    def test_a_file_too_many_is_named(self, name: str, bundle: Path) -> None:
        (bundle / "model" / name).write_bytes(b"{}")
        with pytest.raises(UserError, match=rf"{name} of the bundled model does not belong there"):
            find_model("bundled")

    def test_what_file_managers_leave_is_let_be(self, bundle: Path) -> None:
        (bundle / "model" / ".DS_Store").write_bytes(b"x")
        assert find_model("bundled").bundled

    def test_the_program_says_it_in_a_line(self, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (bundle / "model/unet/diffusion_paddle_model.safetensors").write_bytes(b"cut off")
        assert main(["generate", "--prompt", PROMPT, "--output", str(bundle / "out")]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "diffusion_paddle_model.safetensors of the bundled model is damaged" in said
        assert not (bundle / "out").exists()

    def test_sums_that_say_nothing_are_no_sums(self, bundle: Path) -> None:
        (bundle / "model" / SUMS).write_text("nothing\n")
        with pytest.raises(UserError, match="cannot be read"):
            check_sums(bundle / "model")

    def test_a_picture_is_drawn_without_a_pickle(self, tmp_path: Path, photo: Path, unpickled: list[str]) -> None:
        arguments = ["--prompt", PROMPT, "--image", str(photo), "--output", str(tmp_path / "out")]
        assert main(["generate", *SMALL, *arguments]) == 0
        assert unpickled == []


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    from PIL import Image

    path = tmp_path / "photo.png"
    Image.effect_noise((64, 64), 80).save(path)
    return path


class Canary:
    """Whoever unpickles it makes a file."""

    def __init__(self, song: Path) -> None:
        self.song = song

    def __reduce__(self) -> tuple:
        return Path.touch, (self.song,)


def put(path: Path, song: Path) -> None:
    path.write_bytes(pickle.dumps({"weight": Canary(song)}))


def beside(folder: Path, song: Path) -> None:
    for part in ("unet", "vae", "text_encoder"):
        for name in ("model_state.pdparams", "pytorch_model.bin", "diffusion_pytorch_model.bin"):
            put(folder / part / name, song)


def in_half_precision(folder: Path, song: Path) -> None:
    put(folder / "unet/model_state.fp16.pdparams", song)


def by_an_index(part: str, index: str) -> Callable[[Path, Path], None]:
    def change(folder: Path, song: Path) -> None:
        put(folder / part / "shard.pdparams", song)
        (folder / part / index).write_text(json.dumps({"metadata": {}, "weight_map": {"x": "shard.pdparams"}}))

    return change


def behind_half_precision(folder: Path, song: Path) -> None:
    unet = folder / "unet"
    os.rename(unet / "diffusion_paddle_model.safetensors", unet / "diffusion_paddle_model.fp16.safetensors")
    put(unet / "model_state.pdparams", song)


def alone(folder: Path, song: Path) -> None:
    (folder / "unet/diffusion_paddle_model.safetensors").unlink()
    put(folder / "unet/model_state.pdparams", song)


def code(name: str) -> Callable[[Path, Path], None]:
    def change(folder: Path, song: Path) -> None:
        (folder / name).write_text(f"open({str(song)!r}, 'w')\n")
        index = json.loads((folder / "model_index.json").read_text())
        index["vae"] = [Path(name).stem, "AutoencoderKL"]
        (folder / "model_index.json").write_text(json.dumps(index))

    return change


def code_behind_a_link(folder: Path, song: Path) -> None:
    (folder / "vae").rename(folder.parent / "elsewhere")
    (folder / "vae").symlink_to(folder.parent / "elsewhere")
    code("vae/mine.py")(folder, song)


def named_in_the_index(**values: object) -> Callable[[Path, Path], None]:
    """Code beside the folder, which its index leads to."""

    def change(folder: Path, song: Path) -> None:
        (folder.parent / "mine.py").write_text(f"open({str(song)!r}, 'w')\n")
        index = json.loads((folder / "model_index.json").read_text()) | values
        (folder / "model_index.json").write_text(json.dumps(index))

    return change


def by_an_index_of_safetensors_elsewhere(folder: Path, song: Path) -> None:
    shard = "../vae/diffusion_paddle_model.safetensors"
    index = folder / "unet" / "diffusion_paddle_model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"x": shard}}))


class TestFolders:
    """Folders of others; each holds something that would run if it were loaded as ppdiffusers loads it."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        shutil.copytree(DEMO / "model", tmp_path / "model")
        return tmp_path / "model"

    @pytest.fixture
    def song(self, tmp_path: Path) -> Path:
        return tmp_path / "song"

    @pytest.mark.parametrize("change", [beside, in_half_precision])
    def test_pickles_beside_safetensors_stay_closed(
        self, change: Callable[[Path, Path], None], folder: Path, song: Path, unpickled: list[str]
    ) -> None:
        change(folder, song)
        source = find_model(str(folder))
        assert source.pickles == ()
        load_pipeline(source)
        assert unpickled == []
        assert not song.exists()

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (by_an_index("unet", "model_state.pdparams.index.json"), "model_state.pdparams.index.json would be loaded"),
            (by_an_index("vae", "model_state.pdparams.index.json"), "holds safetensors, but"),
            (by_an_index("unet", "diffusion_paddle_model.safetensors.index.json"), "names 'shard.pdparams'"),
            (behind_half_precision, "model_state.pdparams would be loaded instead"),
            (code("None.py"), "holds code, None.py"),
            (code("vae/mine.py"), "holds code, vae/mine.py"),
            (code("vae/mine.PY"), "holds code, vae/mine.PY"),  # the same file where capitals do not count
            (code_behind_a_link, "holds code, vae/mine.py"),
            (named_in_the_index(vae=["../../mine", "AutoencoderKL"]), "'../../mine', 'AutoencoderKL'], which"),
            (named_in_the_index(_class_name=["../mine", "Mine"]), "holds _class_name=['../mine', 'Mine'], which"),
            (named_in_the_index(**{"../vae": ["ppdiffusers", "AutoencoderKL"]}), "holds ../vae="),
            (by_an_index_of_safetensors_elsewhere, "which is not a safetensors file next to it"),
        ],
    )
    def test_what_would_run_unasked_is_refused(
        self, change: Callable[[Path, Path], None], sentence: str, folder: Path, song: Path, unpickled: list[str]
    ) -> None:
        change(folder, song)
        with pytest.raises(UserError) as raised:
            find_model(str(folder))
        assert sentence in str(raised.value)
        assert unpickled == []
        assert not song.exists()

    def test_links_within_a_model_are_followed_and_their_circles_are_not(self, folder: Path) -> None:
        (folder / "vae").rename(folder.parent / "elsewhere")
        (folder / "vae").symlink_to(folder.parent / "elsewhere")
        (folder / "unet" / "again").symlink_to(folder)
        assert find_model(str(folder)).pickles == ()

    def test_the_same_of_a_controlnet(self, tmp_path: Path, song: Path) -> None:
        folder = shutil.copytree(DEMO / "controlnet", tmp_path / "controlnet")
        (folder / "mine.py").write_text("")
        with pytest.raises(UserError, match=r"holds code, mine\.py"):
            find_controlnet(str(folder))
        (folder / "mine.py").unlink()
        put(folder / "model_state.pdparams", song)
        assert find_controlnet(str(folder)).pickles == ()
        (folder / "diffusion_paddle_model.safetensors").unlink()
        assert find_controlnet(str(folder)).pickles == (folder / "model_state.pdparams",)

    def test_pickles_alone_are_what_was_named_and_are_warned_of(self, folder: Path, song: Path) -> None:
        alone(folder, song)
        source = find_model(str(folder))
        assert source.pickles == (folder / "unet/model_state.pdparams",)
        with pytest.warns(UserWarning, match="is a pickle, which can run any code"), pytest.raises(UserError):
            load_pipeline(source)
        assert song.exists()  # which is why it is warned of

    def test_safetensors_are_not_warned_of(self) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            load_pipeline(find_model("bundled"))
        assert not [each for each in caught if "pickle" in str(each.message)]

"""The bundled models: whole, small, in ppdiffusers' format, and showing what is asked."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import paddle
import pytest
from PIL import Image
from ppdiffusers import ControlNetModel, DiTPipeline, StableDiffusionPipeline

from ppdiffusers_tome.cpu.chunked_attention import enable_chunked_attention
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.demo_model import DIT, MODEL
from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS, Subject, prompt_of
from ppdiffusers_tome.tools.demo_model.recognition import nearest_subject
from ppdiffusers_tome.tools.generation import sampling
from ppdiffusers_tome.tools.generation.edges import compute_photograph_edges
from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
from ppdiffusers_tome.tools.generation.model_sources import find_controlnet, find_model

DEMO = MODEL.parent


@pytest.mark.parametrize("folder", ["model", "controlnet", "dit"])
def test_files_match_their_sums(folder: str) -> None:
    sums = dict(reversed(line.split("  ")) for line in (DEMO / folder / "SHA256SUMS").read_text().splitlines())
    files = {str(p.relative_to(DEMO / folder)) for p in (DEMO / folder).rglob("*") if p.is_file()} - {"SHA256SUMS"}
    assert files == set(sums)
    for name, expected in sums.items():
        assert hashlib.sha256((DEMO / folder / name).read_bytes()).hexdigest() == expected, name


@pytest.mark.parametrize(("folders", "most"), [(("model", "controlnet"), 45_000_000), (("dit",), 15_000_000)])
def test_files_are_small_and_hold_no_pickle(folders: tuple[str, ...], most: int) -> None:
    files = [path for folder in folders for path in (DEMO / folder).rglob("*") if path.is_file()]
    assert files
    assert sum(path.stat().st_size for path in files) <= most
    assert {path.suffix for path in files} <= {".json", ".txt", ".safetensors", ""}


def test_files_name_no_place_they_came_from() -> None:
    for path in DEMO.rglob("*.json"):
        assert '": "/' not in path.read_text(), path


@pytest.fixture(scope="module")
def pipe() -> StableDiffusionPipeline:
    pipe = StableDiffusionPipeline.from_pretrained(str(DEMO / "model"))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_pictures_are_512_with_4096_tokens_at_the_top(pipe: StableDiffusionPipeline) -> None:
    assert pipe.unet.config.sample_size * pipe.vae_scale_factor == 512
    assert pipe.unet.config.sample_size**2 == 4096
    assert pipe.apply_tome(0.5).tome.blocks == {"unet": 3}
    pipe.remove_tome()


def test_weights_are_used_in_float32(pipe: StableDiffusionPipeline) -> None:
    layers = (pipe.unet, pipe.vae, pipe.text_encoder, ControlNetModel.from_pretrained(str(DEMO / "controlnet")))
    assert {p.dtype for layer in layers for p in layer.parameters()} == {paddle.float32}


@pytest.mark.parametrize("model", ["bundled", "bundled-dit"])
@pytest.mark.parametrize(
    "subjects", [SUBJECTS[1:3], pytest.param(SUBJECTS, marks=pytest.mark.sweep)], ids=["two", "all"]
)
def test_pictures_show_the_asked_photograph_merged(
    model: str, subjects: tuple[Subject, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the settings of the command line, as a user gets them."""
    prompts = [word for subject in subjects for word in ("--prompt", prompt_of(subject))]
    assert main(["generate", "--model", model, *prompts, "--ratio", "0.5", "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""
    shown = {path.name: nearest_subject(np.asarray(Image.open(path))) for path in tmp_path.glob("*.png")}
    assert [shown[name] for name in sorted(shown)] == list(subjects)


@pytest.mark.parametrize(
    "subject", [SUBJECTS[0], *(pytest.param(subject, marks=pytest.mark.sweep) for subject in SUBJECTS[1:])],
    ids=lambda subject: subject.name,
)  # fmt: skip
def test_edges_alone_tell_the_controlnet_what_to_draw(subject: Subject) -> None:
    """Without a word, merged: nothing but the edges names the subject."""
    guided = load_pipeline(find_model("bundled"), find_controlnet("bundled"))
    guided.set_progress_bar_config(disable=True)
    guided.apply_tome(0.5)
    enable_chunked_attention(guided)
    edges = compute_photograph_edges(subject, 512, 512)
    picture = np.asarray(
        sampling.generate_image(guided, "", height=512, width=512, seed=0, steps=10, guidance_scale=1.5, edges=edges)
    )
    assert nearest_subject(picture) is subject


class TestTransformer:
    @pytest.fixture(scope="class")
    def dit(self) -> DiTPipeline:
        pipe = DiTPipeline.from_pretrained(str(DIT))
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def test_pictures_are_512_with_1024_tokens(self, dit: DiTPipeline) -> None:
        config = dit.transformer.config
        assert config.sample_size * 8 == 512
        assert (config.sample_size // config.patch_size) ** 2 == 1024
        assert dit.apply_tome(0.5).tome.blocks == {"transformer": config.num_layers}
        dit.remove_tome()

    def test_weights_are_used_in_float32(self, dit: DiTPipeline) -> None:
        assert {p.dtype for layer in (dit.transformer, dit.vae) for p in layer.parameters()} == {paddle.float32}

    def test_labels_are_the_subjects(self, dit: DiTPipeline) -> None:
        assert [dit.labels[subject.name] for subject in SUBJECTS] == list(range(len(SUBJECTS)))

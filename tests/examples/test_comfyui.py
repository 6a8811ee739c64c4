"""The nodes for ComfyUI without ComfyUI: their inputs, both workflows, and that other branches stay unmerged."""

import json
import sys
from typing import Any

import numpy as np
import paddle
import pytest
from ppdiffusers import StableDiffusionPipeline

import tiny
from examples.helpers import EXAMPLES, load_module
from pipelines.whole import text_parts
from ppdiffusers_tome import ToMeConfig

FOLDER = EXAMPLES / "comfyui"
NODE, LOADER = "PaddleTokenMerging", "PaddlePhotographsLoader"
FILES = ["workflow", "workflow_photographs"]  # .json for ComfyUI's page, _api.json for its /prompt
OWN = "ratio and method"
USUAL = dict(settings="balanced", ratio=0.5, method="tome", start=0.0, end=1.0)


def load_nodes() -> dict[str, Any]:
    """The folder as ComfyUI loads it: a module by its path, with submodules beside it."""
    return load_module("custom_nodes.token_merging", FOLDER / "__init__.py").NODE_CLASS_MAPPINGS


NODES = load_nodes()
OURS = NODES[NODE]


def read_workflow(file: str) -> dict[str, Any]:
    return json.loads((FOLDER / file).read_text(encoding="utf-8"))


def test_the_node_says_what_is_wrong_before_anything_is_loaded():
    assert OURS.VALIDATE_INPUTS(**USUAL) is True
    assert OURS.VALIDATE_INPUTS(**{**USUAL, "settings": "off"}) is True
    assert OURS.VALIDATE_INPUTS(**{**USUAL, "ratio": None, "start": 5.0}) is True  # another node gives the ratio
    for given, words in [
        (dict(start=0.8, end=0.2), "start=0.8 must be below end=0.2"),
        (dict(settings=OWN, ratio=0.75), "below 0.75"),
        (dict(settings=OWN, method="merge"), "method='merge'"),
        (dict(settings="quick"), "there is no preset 'quick'"),
        (dict(cache=1.0), "cache=1.0"),
    ]:
        assert words in OURS.VALIDATE_INPUTS(**{**USUAL, **given})


def test_a_cache_over_steps_is_optional():
    usual = {**USUAL, "settings": OWN}
    for given, cache in ((usual, 0.0), ({**usual, "cache": 0.5}, 0.5)):
        pipe, summary = OURS().merge(tiny.pipeline(), **given)
        assert pipe.tome.config == ToMeConfig(0.5, cache=cache)
        assert ("cache 0.5" in summary) == bool(cache)
    pipe, _ = OURS().merge(tiny.pipeline(), **{**usual, "settings": "off", "cache": 0.2})
    assert pipe.tome.config == ToMeConfig(0.0, cache=0.2), "nothing merges, and the cache is used"
    pipe, summary = OURS().merge(tiny.pipeline(), **{**usual, "ratio": 0.0})
    assert (pipe.tome, summary) == (None, "nothing merges")


def test_without_the_package_one_line_says_so(monkeypatch, capsys):
    for name in ("ppdiffusers_tome", "custom_nodes.token_merging"):
        monkeypatch.setitem(sys.modules, name, None)
    assert load_nodes() == {}
    (line,) = capsys.readouterr().out.splitlines()
    assert "ppdiffusers_tome is not installed" in line


@pytest.mark.parametrize("file", FILES)
def test_both_forms_of_a_workflow_use_the_node_as_it_is(file):
    nodes = read_workflow(f"{file}_api.json").values()
    (of_program,) = [node["inputs"] for node in nodes if node["class_type"] == NODE]
    (of_page,) = [node for node in read_workflow(f"{file}.json")["nodes"] if node["type"] == NODE]
    assert list(of_program) == list(OURS.INPUT_TYPES()["required"])
    assert [each["name"] for each in of_page["inputs"]] == ["sd_pipe"]
    del of_program["sd_pipe"]
    assert of_page["widgets_values"] == list(of_program.values())
    assert OURS.VALIDATE_INPUTS(**of_program) is True
    assert [each["type"] for each in of_page["outputs"]] == list(OURS.RETURN_TYPES)


def sample(pipe: Any, **inputs: Any) -> np.ndarray:
    """Sample as PaddleMIX's nodes do: by another pipeline, of the components of the one they are given."""
    sampler = StableDiffusionPipeline(**pipe.components, requires_safety_checker=False)
    sampler.set_progress_bar_config(disable=True)
    paddle.seed(inputs["seed"])
    latent = sampler(
        prompt="a photo of a cat", width=inputs["width"], height=inputs["height"],
        num_inference_steps=inputs["steps"], guidance_scale=inputs["cfg"], output_type="latent",
    ).images  # fmt: skip
    image = pipe.vae.decode(latent / pipe.vae.config.scaling_factor, return_dict=False)[0]
    return (image / 2 + 0.5).clip(0, 1).numpy()


def test_other_branches_stay_unmerged_and_settings_do_not_add_up():
    inputs = dict(seed=0, width=32, height=32, steps=2, cfg=7.5)
    pipe = tiny.pipeline(**text_parts())
    plain = sample(pipe, **inputs)
    for widgets, settings in [
        ({}, dict(ratio="balanced")),
        (dict(settings=OWN, ratio=0.3, end=0.5), dict(ratio=0.3, end=0.5)),
        (dict(settings="off"), None),
    ]:
        merged = sample(OURS().merge(pipe, **{**USUAL, **widgets})[0], **inputs)
        other = tiny.pipeline(**text_parts())
        expected = plain if settings is None else sample(other.apply_tome(**settings), **inputs)
        assert np.array_equal(merged, expected), widgets
        assert settings is None or np.abs(merged - plain).max() > 1e-3
        assert np.array_equal(sample(pipe, **inputs), plain)
    first, _ = OURS().merge(pipe, **{**USUAL, "settings": OWN})
    second, summary = OURS().merge(first, **{**USUAL, "settings": OWN, "ratio": 0.25, "method": "keys"})
    assert second.tome.config == ToMeConfig(0.25, method="keys")
    assert summary == f"unet has ratio 0.25, method keys in {sum(second.tome.blocks.values())} blocks"


def test_the_photographs_models_unet_generates_what_the_model_generates_by_itself():
    """In small and in few steps. Asked at the wrong timesteps they correlate by less than 0.87."""
    pipe = getattr(NODES[LOADER](), NODES[LOADER].FUNCTION)()[0]
    nodes = read_workflow("workflow_photographs_api.json").values()
    inputs = next(node["inputs"] for node in nodes if "Text2Image" in node["class_type"])
    assert [inputs[name] for name in ("width", "height", "steps", "cfg")] == [512, 512, 10, 1.5]
    inputs = {**inputs, "width": 64, "height": 64, "steps": 4}
    expected = sample(StableDiffusionPipeline.from_pretrained(str(tiny.PHOTOGRAPHS)), **inputs)
    merged, _ = OURS().merge(pipe, **USUAL)
    for image in (sample(pipe, **inputs), sample(merged, **inputs)):
        assert np.corrcoef(image.ravel(), expected.ravel())[0, 1] > 0.9

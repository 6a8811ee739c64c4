"""The nodes for ComfyUI, by ComfyUI's protocol and without ComfyUI: what a node tells of itself, which nodes run again
when something changes, and that a pipeline goes from node to node by reference and stays for the next run.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import paddle
import pytest
from ppdiffusers import DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from ppdiffusers.transformers import CLIPTokenizer

import tiny
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.presets import presets
from ppdiffusers_tome.tools.demo_model import MODEL

pytestmark = pytest.mark.once

FOLDER = tiny.ROOT / "examples" / "comfyui"
NODE, LOADER = "PaddleTokenMerging", "PaddleBundledModelLoader"
FILES = ["workflow", "workflow_bundled"]  # .json for ComfyUI's page, _api.json for its /prompt
OWN = "ratio and method"
SCHEDULERS = [
    "euler", "euler-ancestral", "pndm", "lms", "heun", "dpm-multi", "dpm-single", "kdpm2-ancestral", "kdpm2",
    "unipc-multi", "ddim", "ddpm", "deis-multi",
]  # fmt: skip
# Inputs and outputs of PaddleMIX's nodes: comfyui/ComfyUI_ppdiffusers/basic_nodes.py and sd_pipe_nodes.py of
# https://github.com/PaddlePaddle/PaddleMIX at commit 6afaf05 (22 October 2024). A list is a choice.
PADDLEMIX: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "PaddleSDCheckpointLoader": ({"ckpt_name": ["v1-5-pruned-emaonly.safetensors"]}, {"sd_pipe": "PIPELINE"}),
    "PaddleSDText2ImagePipe": (
        {
            "sd_pipe": "PIPELINE", "prompt": "PROMPT", "negative_prompt": "PROMPT", "steps": "INT", "width": "INT",
            "height": "INT", "number": "INT", "seed": "INT", "cfg": "FLOAT", "scheduler_type": SCHEDULERS,
        },
        {"latent": "LATENT"},
    ),
    "PaddleSDVaeDecoder": ({"latent": "LATENT", "sd_pipe": "PIPELINE"}, {"image": "IMAGE"}),
    "PromptInput": ({"prompt": "STRING"}, {"prompt": "PROMPT"}),
    "PaddleSaveImage": ({"images": "IMAGE", "filename_prefix": "STRING", "censor": "BOOLEAN"}, {}),
}  # fmt: skip
OF_PYTHON = {"INT": int, "FLOAT": (int, float), "STRING": str, "BOOLEAN": bool}


def loaded() -> ModuleType:
    """The folder as ComfyUI loads it: a module by its path, with submodules beside it."""
    name = "custom_nodes.token_merging"
    spec = importlib.util.spec_from_file_location(name, FOLDER / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


NODES = loaded().NODE_CLASS_MAPPINGS
OURS = NODES[NODE]


def written(file: str) -> dict[str, Any]:
    return json.loads((FOLDER / file).read_text(encoding="utf-8"))


def workflow(**settings: Any) -> dict[str, Any]:
    """The file, with small pictures and other settings of our node."""
    nodes = written("workflow_api.json")
    for node in nodes.values():
        if "Text2Image" in node["class_type"]:
            node["inputs"].update(width=32, height=32, steps=2)
        if node["class_type"] == NODE:
            node["inputs"].update(settings)
    return nodes


def inputs_of(kind: str) -> dict[str, Any]:
    """Every input of a node, a type or a list to choose from."""
    if kind in NODES:
        return {name: told[0] for name, told in NODES[kind].INPUT_TYPES()["required"].items()}
    return PADDLEMIX[kind][0]


def outputs_of(kind: str) -> dict[str, str]:
    if kind in NODES:
        return dict(zip(NODES[kind].RETURN_NAMES, NODES[kind].RETURN_TYPES, strict=True))
    return PADDLEMIX[kind][1]


def is_link(value: Any) -> bool:
    return isinstance(value, list)


class TestOfTheNode:

    def test_offers_every_preset_and_method(self) -> None:
        told = OURS.INPUT_TYPES()["required"]
        assert [*presets(), OWN, "off"] == told["settings"][0]
        assert list(METHODS) == told["method"][0]

    def test_says_what_is_wrong_before_anything_is_loaded(self) -> None:
        usual = dict(settings="balanced", ratio=0.5, method="tome", start=0.0, end=1.0)
        assert OURS.VALIDATE_INPUTS(**usual) is True
        assert OURS.VALIDATE_INPUTS(**{**usual, "settings": "off"}) is True
        assert OURS.VALIDATE_INPUTS(**{**usual, "ratio": None, "start": 5.0}) is True  # another node gives the ratio
        for given, words in [
            (dict(start=0.8, end=0.2), "0 <= start < end <= 1"),
            (dict(settings=OWN, ratio=0.75), "below 0.75"),
            (dict(settings=OWN, method="merge"), "method='merge'"),
            (dict(settings="quick"), "there is no preset 'quick'"),
        ]:
            assert words in OURS.VALIDATE_INPUTS(**{**usual, **given})

    def test_without_the_package_one_line_says_so(self) -> None:
        code = f"""
import importlib.util, sys
sys.modules["ppdiffusers_tome"] = None
spec = importlib.util.spec_from_file_location("nodes", {str(FOLDER / "__init__.py")!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert module.NODE_CLASS_MAPPINGS == {{}}
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 1
        assert "ppdiffusers_tome is not installed" in done.stdout


@pytest.mark.parametrize("file", FILES)
class TestOfTheWorkflow:
    def test_its_inputs_are_those_of_the_nodes(self, file: str) -> None:
        nodes = written(f"{file}_api.json")
        loader = {"workflow": "PaddleSDCheckpointLoader", "workflow_bundled": LOADER}[file]
        others = PADDLEMIX.keys() - {"PaddleSDCheckpointLoader"}
        assert {node["class_type"] for node in nodes.values()} == {NODE, loader, *others}
        for number, node in nodes.items():
            known = inputs_of(node["class_type"])
            assert node["inputs"].keys() == known.keys(), number
            for name, value in node["inputs"].items():
                if is_link(value):
                    given = list(outputs_of(nodes[value[0]]["class_type"]).values())[value[1]]
                    assert given == known[name], (number, name)
                elif isinstance(known[name], list):
                    assert value in known[name], (number, name)
                else:
                    assert isinstance(value, OF_PYTHON[known[name]]), (number, name)

    def test_the_graph_of_the_page_is_the_same_workflow(self, file: str) -> None:
        """As ComfyUI's page makes one of the other; its own widget after a seed says whether that changes."""
        graph = written(f"{file}.json")
        links = {link[0]: link for link in graph["links"]}
        found: dict[str, Any] = {}
        for node in graph["nodes"]:
            known, values = inputs_of(node["type"]), iter(node["widgets_values"])
            linked = {each["name"]: each for each in node["inputs"]}
            inputs: dict[str, Any] = {}
            for name in known:
                if name in linked:
                    _, origin, slot, target, place, kind = links[linked[name]["link"]]
                    assert (target, node["inputs"][place]["name"], kind) == (node["id"], name, known[name])
                    inputs[name] = [str(origin), slot]
                else:
                    inputs[name] = next(values)
                    assert name != "seed" or next(values) == "fixed"
            assert next(values, None) is None
            assert {each["name"]: each["type"] for each in node["outputs"]} == outputs_of(node["type"])
            for slot, output in enumerate(node["outputs"]):
                assert output["links"] == [link[0] for link in graph["links"] if link[1:3] == [node["id"], slot]]
            found[str(node["id"])] = {"class_type": node["type"], "inputs": inputs}
        nodes = written(f"{file}_api.json")
        assert found == {
            number: {name: node[name] for name in ("class_type", "inputs")} for number, node in nodes.items()
        }


def load(ckpt_name: str) -> tuple[Any]:
    tokenizer = CLIPTokenizer.from_pretrained(str(MODEL / "tokenizer"))
    encoder = tiny.text_encoder(vocab_size=len(tokenizer), max_position_embeddings=tokenizer.model_max_length)
    return (tiny.pipeline(tokenizer=tokenizer, text_encoder=encoder),)


def sample(**given: Any) -> tuple[paddle.Tensor]:
    """As PaddleMIX's samplers: another pipeline, of the components of the one they are given."""
    pipe = StableDiffusionPipeline(**given["sd_pipe"].components, requires_safety_checker=False)
    pipe.set_progress_bar_config(disable=True)
    paddle.seed(given["seed"])
    latent = pipe(
        prompt=given["prompt"], negative_prompt=given["negative_prompt"], width=given["width"], height=given["height"],
        num_images_per_prompt=given["number"], num_inference_steps=given["steps"], guidance_scale=given["cfg"],
        output_type="latent",
    ).images  # fmt: skip
    return (latent,)


def decode(latent: paddle.Tensor, sd_pipe: Any) -> tuple[np.ndarray]:
    picture = sd_pipe.vae.decode(latent / sd_pipe.vae.config.scaling_factor, return_dict=False)[0]
    return ((picture / 2 + 0.5).clip(0, 1).transpose([0, 2, 3, 1]).numpy(),)


class Engine:
    """Runs workflows as ComfyUI does: a node runs again where its inputs, or those of a node before it, changed."""

    RUNS: ClassVar[dict[str, Callable[..., tuple]]] = {
        "PaddleSDCheckpointLoader": load,
        "PaddleSDText2ImagePipe": sample,
        "PaddleSDVaeDecoder": decode,
        "PromptInput": lambda prompt: (prompt,),
        "PaddleSaveImage": lambda images, filename_prefix, censor: (images,),
        NODE: lambda **given: getattr(OURS(), OURS.FUNCTION)(**given),
        LOADER: lambda: getattr(NODES[LOADER](), NODES[LOADER].FUNCTION)(),
    }

    def __init__(self) -> None:
        self.kept: dict[str, tuple] = {}

    def run(self, nodes: dict[str, Any], order: list[str]) -> tuple[dict[str, np.ndarray], list[str]]:
        """Pictures by the name of their file, and the kinds of the nodes that ran; the outputs in the given order."""
        ran: list[str] = []

        def signature(number: str) -> str:
            inputs = nodes[number]["inputs"].items()
            told = {name: [signature(each[0]), each[1]] if is_link(each) else each for name, each in inputs}
            return json.dumps([nodes[number]["class_type"], told])

        def output(number: str) -> tuple:
            if signature(number) not in self.kept:
                inputs = nodes[number]["inputs"].items()
                given = {name: output(each[0])[each[1]] if is_link(each) else each for name, each in inputs}
                self.kept[signature(number)] = self.RUNS[nodes[number]["class_type"]](**given)
                ran.append(nodes[number]["class_type"])
            return self.kept[signature(number)]

        saving = {node["inputs"]["filename_prefix"]: number for number, node in nodes.items()
                  if node["class_type"] == "PaddleSaveImage"}  # fmt: skip
        pictures = {name: output(saving[name])[0] for name in order}
        self.kept = {signature(number): self.kept[signature(number)] for number in nodes}  # of other runs, none
        return pictures, ran


@pytest.fixture
def alone() -> Callable[..., np.ndarray]:
    """The picture that a pipeline of its own draws, with ToMe applied in Python."""
    drawn: dict[str, np.ndarray] = {}

    def draw(**settings: Any) -> np.ndarray:
        told = json.dumps(settings)
        if told not in drawn:
            pipe = load("")[0]
            if settings:
                pipe.apply_tome(**settings)
            nodes = workflow()
            given = next(node["inputs"] for node in nodes.values() if "Text2Image" in node["class_type"])
            texts = [nodes[given[name][0]]["inputs"]["prompt"] for name in ("prompt", "negative_prompt")]
            given = {**given, "sd_pipe": pipe, "prompt": texts[0], "negative_prompt": texts[1]}
            drawn[told] = decode(sample(**given)[0], pipe)[0]
        return drawn[told]

    return draw


def test_branches_stay_apart_and_settings_do_not_add_up(alone: Callable[..., np.ndarray]) -> None:
    engine, order = Engine(), ["unmerged", "merged"]
    plain = alone()
    for number, (widgets, settings) in enumerate([
        (dict(settings="balanced"), dict(ratio="balanced")),
        (dict(settings=OWN, ratio=0.7), dict(ratio=0.7)),
        (dict(settings=OWN, ratio=0.3, end=0.5), dict(ratio=0.3, end=0.5)),
        (dict(settings="off"), {}),
    ]):  # fmt: skip
        pictures, ran = engine.run(workflow(**widgets), order)
        assert np.array_equal(pictures["unmerged"], plain), widgets
        assert np.array_equal(pictures["merged"], alone(**settings)), widgets
        assert settings == {} or np.abs(pictures["merged"] - plain).max() > 1e-3
        behind = ["PaddleSDText2ImagePipe", "PaddleSDVaeDecoder", "PaddleSaveImage"]
        assert number == 0 or ran == [NODE, *behind]  # the rest is kept, the loaded pipeline too
    assert engine.run(workflow(**widgets), order)[1] == []
    pictures, _ = Engine().run(workflow(settings="balanced"), order[::-1])  # merged first
    assert np.array_equal(pictures["unmerged"], plain)
    assert np.array_equal(pictures["merged"], alone(ratio="balanced"))


def test_a_second_node_takes_the_place_of_the_first() -> None:
    node = OURS()
    plain = load("")[0]
    first, said = node.merge(plain, OWN, 0.5, "tome", 0.0, 1.0)
    second, _ = node.merge(first, OWN, 0.25, "prune", 0.0, 1.0)
    off, nothing = node.merge(first, "off", 0.5, "tome", 0.0, 1.0)
    assert plain.tome is off.tome is None
    assert (first.tome.config.ratio, second.tome.config.ratio, second.tome.config.method) == (0.5, 0.25, "prune")
    assert said == f"ratio 0.5: {first.tome.num_blocks} blocks of unet"
    assert nothing == "nothing merges"


class TestOfTheBundledModel:
    """Its loader's UNet predicts noise at the timesteps of Stable Diffusion 1.5, as PaddleMIX's samplers want it."""

    @pytest.fixture(scope="class")
    def pipe(self) -> StableDiffusionPipeline:
        return Engine.RUNS[LOADER]()[0]

    def test_the_noise_it_tells_is_in_what_it_was_trained_on(self, pipe: StableDiffusionPipeline) -> None:
        """Of the two timesteps with as much noise, the model is asked at its own one, and answers with v."""
        model = UNet2DConditionModel.from_pretrained(str(MODEL / "unet"))
        trained = DDIMScheduler.from_pretrained(str(MODEL / "scheduler")).alphas_cumprod.numpy().astype("float64")
        asked = pipe.scheduler.alphas_cumprod.numpy().astype("float64")
        latent, text = tiny.array((2, 4, 8, 8)), tiny.array((2, 7, model.config.cross_attention_dim))
        for own in (100, 300, 500):
            timestep = float(np.interp(-trained[own], -asked, range(1000)))
            velocity = model(latent, own, text, return_dict=False)[0]
            noise = pipe.unet(latent, paddle.to_tensor(timestep), text).sample
            # v is the signal's share of the noise less the noise's share of the picture.
            picture = (latent - (1 - trained[own]) ** 0.5 * noise) / trained[own] ** 0.5
            expected = trained[own] ** 0.5 * noise - (1 - trained[own]) ** 0.5 * picture
            np.testing.assert_allclose(velocity.numpy(), expected.numpy(), atol=2e-3)
            (bare,) = pipe.unet(latent, timestep, text, return_dict=False)
            np.testing.assert_allclose(bare.numpy(), noise.numpy(), atol=1e-4)

    def test_its_workflow_draws_what_the_model_draws_by_itself(self) -> None:
        """In small and in few steps. Asked at the wrong timesteps they correlate by less than 0.87."""
        nodes = written("workflow_bundled_api.json")
        for node in nodes.values():
            if "Text2Image" in node["class_type"]:
                assert [node["inputs"][name] for name in ("width", "height", "steps", "cfg")] == [512, 512, 10, 1.5]
                node["inputs"].update(width=64, height=64, steps=4)
        pictures, ran = Engine().run(nodes, ["unmerged", "merged"])
        assert sorted(ran) == sorted(node["class_type"] for node in nodes.values())
        usual = StableDiffusionPipeline.from_pretrained(str(MODEL))
        given = {**nodes["5"]["inputs"], "sd_pipe": usual, "prompt": "a photo of a cat", "negative_prompt": ""}
        expected = decode(sample(**given)[0], usual)[0]
        for picture in pictures.values():
            assert picture.shape == expected.shape == (1, 64, 64, 3)
            assert np.corrcoef(picture.ravel(), expected.ravel())[0, 1] > 0.9
        assert np.abs(pictures["merged"] - pictures["unmerged"]).mean() > 1e-3

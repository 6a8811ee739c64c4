"""A merging model as a static program: saved, loaded and run, it gives what it gives in dynamic mode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest

import tiny
from ppdiffusers_tome import ToMeConfig, ToMeTypeError, ToMeValueError, apply_tome, remove_tome
from ppdiffusers_tome.export.loading import load_exported, load_program
from ppdiffusers_tome.export.pipelines import _check_program, _find_configs, export_pipeline
from ppdiffusers_tome.export.programs import PROGRAM, Component, build_denoiser_component
from ppdiffusers_tome.patching.override import walk_overrides
from ppdiffusers_tome.patching.overrides.block import GridOverride
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall

# Settings that decide how matching is computed; between them every way there is.
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "regular": dict(use_rand=False, merge_crossattn=True),
    "all": dict(tile=4, reuse_steps=4, merge_mlp=True),
    "keys": dict(method="todo"),
    "merged keys": dict(method="keys"),
}


def unet_of(name: str) -> tiny.Model:
    return apply_tome(tiny.small_unet(), 0.5, **SETTINGS[name])


def part_of(unet: tiny.Model, rows: int | None = None) -> Component:
    return build_denoiser_component(unet, height=128, width=128, rows=rows, text_tokens=tiny.TEXT_TOKENS)


def make_guided_part(unet: tiny.Model, controlnet: tiny.Model) -> Component:
    """The tiny ControlNet's edges are two times as large as its latent, not eight."""
    part = build_denoiser_component(unet, controlnet, height=32, width=32, text_tokens=tiny.TEXT_TOKENS)
    return replace(part, inputs={**part.inputs, "sample": ([None, 4, 16, 16], "float32")})


def inputs(rows: int, timestep: float) -> dict[str, paddle.Tensor]:
    """Rows that differ, neighbours that resemble each other."""
    return {
        "sample": tiny.latent(rows),
        "timestep": paddle.to_tensor([timestep], dtype="float32"),
        "encoder_hidden_states": tiny.array((rows, tiny.TEXT_TOKENS, tiny.CROSS_DIM), seed=2),
    }


@pytest.fixture(scope="module")
def default_folder(tmp_path_factory):
    """The UNet with the default settings as a program for any batch."""
    folder = tmp_path_factory.mktemp("default")
    part_of(unet_of("default")).save(folder)
    return folder / "unet"


def differences(folder: Path, part: Component, example: dict[str, paddle.Tensor]) -> dict[str, float]:
    """How far the program in a folder is from the model, through ``paddle.jit.load`` and Paddle Inference."""
    wanted = part.run(example)
    with paddle.no_grad():
        loaded = paddle.jit.load(str(folder / PROGRAM))(*example.values()).numpy()
    inferred = load_program(folder)(**example)[0].numpy()
    return {"load": np.abs(loaded - wanted).max(), "inference": np.abs(inferred - wanted).max()}


def test_one_program_takes_any_batch_and_follows_the_timestep(default_folder):
    part = part_of(unet_of("default"))
    outputs = []
    for rows, timestep in ((1, 500), (3, 3), (2, 981.5)):
        example = inputs(rows, timestep)
        assert max(differences(default_folder, part, example).values()) <= 1e-4
        outputs.append(load_program(default_folder)(**example)[0].numpy())
    assert [len(output) for output in outputs] == [1, 3, 2]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_a_program_takes_numbers_of_any_type(dtype, default_folder):
    program, example = load_program(default_folder), inputs(1, 500)
    given = {name: value.astype(dtype) for name, value in example.items()}
    same = {name: value.astype("float32") for name, value in given.items()}
    for each in (given, {name: value.numpy() for name, value in given.items()} if dtype != "bfloat16" else given):
        np.testing.assert_array_equal(program(**each)[0].numpy(), program(**same)[0].numpy())


def test_destinations_in_a_program_depend_on_seed_and_timestep_alone(default_folder):
    program, example = load_program(default_folder), inputs(1, 500)
    first = program(**example)[0].numpy()
    paddle.seed(1234)
    np.testing.assert_array_equal(program(**example)[0].numpy(), first)
    other_seed = part_of(apply_tome(tiny.small_unet(), 0.5, seed=1)).run(example)
    assert np.abs(other_seed - first).max() > 1e-3
    # With the timestep the plain model changes too; what ToMe adds changes with it only where destinations do.
    added = [
        load_program(default_folder)(**inputs(1, step))[0].numpy() - part_of(tiny.small_unet()).run(inputs(1, step))
        for step in (500, 3)
    ]
    assert np.abs(added[0] - added[1]).max() > 1e-3


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "default"])
def test_every_way_of_matching_is_exported(name, tmp_path):
    part = part_of(unet_of(name), rows=2 if name == "regular" else None)
    part.save(tmp_path)
    assert max(differences(tmp_path / "unet", part, inputs(2, 500)).values()) <= 1e-4


def test_a_controlnet_is_exported_with_its_unet(tmp_path):
    unmerged = make_guided_part(tiny.small_unet(), tiny.controlnet(levels=1))
    part = make_guided_part(apply_tome(tiny.small_unet(), 0.5), apply_tome(tiny.controlnet(levels=1), 0.5))
    part.save(tmp_path)
    examples = part.make_examples()
    assert [len(example["sample"]) for example in examples] == [1, 2]
    for example in examples:
        assert max(differences(tmp_path / "unet", part, example).values()) <= 1e-4
    assert np.abs(unmerged.run(examples[0]) - part.run(examples[0])).max() > 1e-3


def test_an_open_size_is_refused_while_it_is_recorded():
    overrides = walk_overrides(apply_tome(tiny.small_unet(), 0.5))
    grid = next(override for override in overrides if isinstance(override, GridOverride))
    paddle.enable_static()
    try:
        latent = paddle.static.data("latent", [2, 8, -1, 16])
        with pytest.raises(ToMeValueError, match="a dynamic height or width cannot become part of a program"):
            grid.run(DenoiserCall(grid.state, grid.layer), type(grid.layer).forward, latent)
    finally:
        paddle.disable_static()


def test_what_the_deploy_pipelines_do_not_take_is_refused(tmp_path):
    image_to_image = tiny.pipeline(ppdiffusers.StableDiffusionImg2ImgPipeline)
    with pytest.raises(ToMeValueError, match="a StableDiffusionImg2ImgPipeline cannot"):
        export_pipeline(image_to_image, tmp_path, height=64, width=64)
    with pytest.raises(ToMeValueError, match=r"channels at 1/\d of the size cannot be exported"):
        export_pipeline(tiny.pipeline(), tmp_path, height=64, width=64)
    for name in ("unet", "vae", "text_encoder"):
        pipe = tiny.pipeline()
        pipe.vae_scale_factor = 8
        getattr(pipe, name).to(dtype="float64")
        with pytest.raises(ToMeValueError, match=f"{name} in .*float64 cannot.* load it in float32"):
            export_pipeline(pipe, tmp_path, height=64, width=64)
    assert not list(tmp_path.iterdir())


def test_an_export_leaves_models_as_they_were(tmp_path):
    unet = unet_of("default")
    unet.train()
    unet.conv_in.eval()
    unet.conv_out.forward = function = unet.conv_out.forward  # a user's
    part = part_of(unet)
    part.run(part.make_examples()[0])  # the first call marks layers as built
    before = tiny.snapshot(unet)
    part.save(tmp_path)
    part.run(part.make_examples()[0])
    for layer in unet.sublayers(include_self=True):
        layer._original_funcs.clear()  # a record of Paddle 2.6
    assert tiny.snapshot(unet) == before
    assert vars(unet.conv_out)["forward"] is function


def test_a_model_that_the_user_traced_is_without_tome_after_removal():
    """Paddle 3 traces with another function in place of ``forward``, and restores ours on the layer itself."""
    unet = unet_of("default")
    specs = [paddle.static.InputSpec(value.shape, value.dtype) for value in inputs(1, 500).values()]
    traced = paddle.jit.to_static(tiny.Positional(unet), specs, full_graph=True)
    assert traced.forward.concrete_program is not None
    remove_tome(unet)
    for layer in unet.sublayers(include_self=True):
        assert "_ppdiffusers_tome" not in vars(layer)
        assert vars(layer).get("forward") is None or not paddle.__version__.startswith("3")
    plain = tiny.small_unet().sublayers(include_self=True)
    assert list(map(type, unet.sublayers(include_self=True))) == list(map(type, plain))


def test_a_folder_without_a_whole_export_is_refused(tmp_path):
    (tmp_path / "model_index.json").write_text("{}")
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ToMeValueError, match="holds no complete export; give the folder of one, or export the pip"):
            load_exported(folder)
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "inference.json").touch()
    with pytest.raises(ToMeValueError, match=r"unet has no inference\.pdiparams; export the pipeline again"):
        load_program(tmp_path / "unet")


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (dict(height="64"), ToMeTypeError, r"height='64' must be a whole number, a multiple of 8.*got str"),
        (dict(width=60), ToMeValueError, r"width=60 must be a whole number, a multiple of 8, such as 512"),
        (dict(width=0), ToMeValueError, r"width=0 must be"),
        (dict(rows=0), ToMeValueError, r"rows=0 must be a whole number, 1 or more \(2 is one guided image\), or None"),
        (dict(tolerance="0.1"), ToMeTypeError, r"tolerance='0\.1' must be a finite number"),
        (dict(tolerance=float("inf")), ToMeValueError, "tolerance=inf must be a finite number"),
    ],
)
def test_an_argument_is_checked_before_anything_is_written(given, error, words, tmp_path):
    with pytest.raises(error, match=words):
        export_pipeline(tiny.pipeline(), tmp_path / "export", **{"height": 64, "width": 64, **given})
    assert not list(tmp_path.iterdir())


def test_a_program_whose_output_is_not_a_number_is_refused(tmp_path):
    """Also where only the late timestep, the second of two examples, has it."""

    class Logarithm(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.scale = self.create_parameter([1])  # Paddle 2.6 loads no program without one

        def forward(self, timestep: paddle.Tensor) -> paddle.Tensor:
            return paddle.log(timestep - 500) * self.scale

    component = Component("unet", Logarithm(), {"timestep": ([1], "float32")})
    component.save(tmp_path)
    assert np.isfinite(component.run(component.make_examples()[0])).all()
    with pytest.raises(ToMeValueError, match="the program of unet differs from its model by nan"):
        _check_program(component, tmp_path, 1e-4)


@pytest.mark.parametrize("settings", [dict(start=0.2), dict(ratio=(0.7, 0.3)), dict(cache=0.2)], ids=str)
def test_every_denoiser_is_checked_before_anything_is_written(settings, tmp_path):
    pipe = tiny.pipeline(ppdiffusers.StableDiffusionControlNetPipeline, controlnet=tiny.controlnet())
    pipe.vae_scale_factor = 8
    assert _find_configs(pipe) == {"unet": ToMeConfig(0), "controlnet": ToMeConfig(0)}
    pipe.unet.apply_tome(0.5)
    assert _find_configs(pipe) == {"unet": ToMeConfig(0.5), "controlnet": ToMeConfig(0)}
    for model in (pipe.controlnet, pipe.unet):
        model.apply_tome(**settings)
        with pytest.raises(ToMeValueError, match="that changes over the denoising, start, end and cache cannot be exp"):
            export_pipeline(pipe, tmp_path / "out", height=64, width=64)
        model.remove_tome()
    assert not list(tmp_path.iterdir())

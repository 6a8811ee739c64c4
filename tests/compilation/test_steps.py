"""Settings that change over the steps: whole images by programs are Paddle's, with as few programs as can be."""

import itertools
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest

import tiny
from compilation.comparison import BY_PADDLE, check_same, difference, needs_openvino, programs_alone
from compilation.programs import get_compiled, list_openvino_models, list_programs
from pipelines.images import CASES
from pipelines.whole import Draw, Made, make_pipeline
from ppdiffusers_tome import apply_tome, compile_cpu, get_tome
from ppdiffusers_tome.compilation import contents

pytestmark = needs_openvino

SETTINGS: dict[str, dict[str, Any]] = {
    "half": dict(ratio=0.5),
    "balanced": dict(ratio="balanced"),
    "cache": dict(ratio=0, cache=0.3),
    "cache and merging": dict(ratio="balanced", cache=0.3),
    "ramp": dict(ratio=(0.6, 0.2)),
    "start and end": dict(ratio=0.5, start=0.2, end=0.8),
    "reuse": dict(ratio=0.5, reuse_steps=3),
    "reuse of keys": dict(ratio=0.5, method="keys", reuse_steps=2, tile=4),
    "all": dict(ratio=(0.5, 0.3), reuse_steps=2, cache=0.3, end=0.8, merge_mlp=True, max_downsample=2),
}
# A program for each kind of step.
PROGRAMS = {"cache": 2, "cache and merging": 2, "start and end": 2, "reuse": 2, "reuse of keys": 2}
QUICK = [("small", each) for each in ("cache", "start and end", "reuse", "all")]
PIPELINES = (
    "small", "text_to_image", "img2img", "inpaint", "upscale", "latent_consistency", "panorama", "gligen_boxes",
    "controlnet_img2img", "sdxl_base", "sdxl_refiner", "sdxl_inpaint", "sdxl_controlnet",
)  # fmt: skip
STEPS = 12


def draw_pair(name: str, settings: dict[str, Any]) -> tuple[Any, np.ndarray, Any, Draw]:
    """Return a pipeline and its image, and the same compiled with its function to draw."""

    def make() -> Made:
        pipe, call = small() if name == "small" else CASES[name]()
        return pipe, {**call, "num_inference_steps": STEPS}

    (plain, draw_plain), (pipe, draw) = (make_pipeline(make) for _ in range(2))
    for each in (plain, pipe):
        each.apply_tome(**settings)
    return plain, draw_plain(), compile_cpu(pipe, "float32"), draw


def small() -> Made:
    """Text to image by a UNet of one level, of which a program is made in a second."""
    given = dict(latents=tiny.latent(1), output_type="np", height=32, width=32)
    return tiny.pipeline(unet=tiny.small_unet()), dict(given, **tiny.PROMPT_EMBEDS)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param(*each, marks=() if each in QUICK else pytest.mark.sweep)
        for each in itertools.product(PIPELINES, SETTINGS)
    ],
)
def test_images_are_those_of_paddle(name: str, settings: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s)ToMe: cache=")
        _, expected, pipe, draw = draw_pair(name, SETTINGS[settings])
    with programs_alone():
        for _ in range(2):
            assert difference(draw(), expected) <= 1e-4
    if settings in PROGRAMS and name in ("small", "text_to_image"):
        assert len(list_programs(pipe.unet)) == PROGRAMS[settings]


def test_what_a_cache_reports_is_that_of_paddle() -> None:
    plain, _, pipe, draw = draw_pair("controlnet_img2img", dict(ratio=0, cache=0.3))
    draw()
    images = [[entry.last_image for entry in each.tome.entries] for each in (plain, pipe)]
    assert all(80_000 < each.cache_bytes < 200_000 for each in (*images[0], *images[1]))
    reports = [[replace(each, cache_bytes=0) for each in reported] for reported in images]
    assert reports[0] == reports[1]
    assert all(report.num_skipped > 0 for report in reports[1])


def test_a_skipped_step_runs_a_program_of_few_layers() -> None:
    _, _, pipe, draw = draw_pair("text_to_image", dict(ratio=0, cache=0.2))
    draw()
    numbers = [len(each.get_runtime_model().get_ops()) for each in list_openvino_models(pipe.unet)]
    assert min(numbers) < 0.3 * max(numbers)


def test_a_ramp_has_a_program_for_each_number_of_tokens() -> None:
    """Two ratios that merge as many tokens are one."""
    _, expected, pipe, draw = draw_pair("small", dict(ratio=(0.5, 0.49)))
    assert difference(draw(), expected) <= 1e-4
    assert 1 < len(list_programs(pipe.unet)) < STEPS


def test_settings_without_a_pipeline() -> None:
    """Ramps go by the timestep; a cache has no effect, as a line says."""
    model, plain = (apply_tome(tiny.small_unet(), (0.6, 0.2)) for _ in range(2))
    compile_cpu(model, "float32")
    for timestep in (950, 500, 20):
        check_same(model, plain, timestep=timestep)
    apply_tome(model, 0.5, cache=0.2)
    with pytest.warns(UserWarning, match="no effect here"):
        check_same(model, apply_tome(plain, 0.5))


def sampler_pair(**settings: Any) -> list[Any]:
    """Two small UNets at a scheduler's timesteps, of which the second is compiled."""
    pipes = [tiny.Sampler(apply_tome(tiny.small_unet(), **settings), tiny.scheduler()) for _ in range(2)]
    compile_cpu(pipes[1], "float32")
    return pipes


class _Scaling(ppdiffusers.UNet2DConditionModel):
    """Gets its timestep as FLUX does, a thousandth."""

    def forward(self, sample: paddle.Tensor, timestep: Any, *args: Any, **kwargs: Any) -> Any:
        return super().forward(sample, timestep * 1000, *args, **kwargs)


@pytest.mark.parametrize("settings", [dict(ratio=0, cache=0.3), dict(ratio=0.5, end=0.5)], ids=str)
def test_a_model_that_changes_its_timestep(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Paddle goes by the timestep that it embeds, as without compiling."""
    monkeypatch.setattr(contents, "_KNOWN", {*contents._KNOWN, __name__.partition(".")[0]})
    pipes = sampler_pair(**settings)
    for pipe in pipes:
        pipe.unet.__class__ = _Scaling

    def call(unet: Any, number: int, timestep: float) -> np.ndarray:
        return tiny.run_unet(unet, timestep=paddle.to_tensor([timestep / 1000]))

    with pytest.warns(UserWarning, match="it embeds another timestep than it gets"):
        expected, found = (np.array(pipe(call, steps=STEPS)) for pipe in pipes)
    assert difference(found, expected) <= 1e-6


@pytest.mark.filterwarnings(f"ignore:(?s).*{BY_PADDLE}")
def test_a_number_with_a_fraction_between_tensors() -> None:
    """Models cut it off, and not that of a tensor; none stands for the other."""
    model, plain = (apply_tome(tiny.small_unet(), 0.5, end=0.5) for _ in range(2))
    compile_cpu(model, "float32")
    for timestep in (paddle.to_tensor([700.25]), 700.25, 499.5, paddle.to_tensor([700.25])):
        found, expected = (tiny.run_unet(each, timestep=timestep) for each in (model, plain))
        assert difference(found, expected) <= 1e-4
    assert set(get_compiled(model)._keeps_timestep.values()) == {True, False}


def test_several_calls_a_step() -> None:
    """Two images in turns, and a call that belongs to no step."""
    texts = {seed: tiny.array(tiny.text().shape, seed=seed) for seed in (2, 3)}

    def call(unet: Any, number: int, timestep: float) -> np.ndarray:
        return np.stack([unet(tiny.latent() * seed, timestep, texts[seed]).sample.numpy() for seed in (2, 3)])

    pipes = sampler_pair(ratio=0.5, cache=0.3, reuse_steps=2)
    with programs_alone():
        expected, found = (np.array(pipe(call, steps=STEPS)) for pipe in pipes)
    assert difference(found, expected) <= 1e-4
    assert get_tome(pipes[1].unet).entries[0].last_image.num_skipped == 8


@pytest.mark.filterwarnings(f"ignore:(?s).*{BY_PADDLE}")
def test_a_step_that_paddle_computes_between_two_of_programs() -> None:
    """What one leaves the other goes on with."""
    pipes = sampler_pair(ratio=0.5, cache=0.3, reuse_steps=3)
    # Nothing is rounded, so that the images are the same.
    whole = {"matmul", "matmul_v2", "conv2d", "mul", "linear", "depthwise_conv2d", "bmm", "einsum", "flash_attn"}

    def call(unet: Any, number: int, timestep: float) -> np.ndarray:
        is_cast = number % 3 == 1 and pipes[1].unet is unet
        with paddle.amp.auto_cast(enable=is_cast, level="O1", custom_black_list=whole):
            return tiny.run_unet(unet, timestep=timestep)

    expected, found = (np.array(pipe(call, steps=STEPS)) for pipe in pipes)
    assert difference(found, expected) <= 1e-4

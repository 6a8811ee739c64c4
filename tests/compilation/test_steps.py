"""Settings that change over the steps: whole images by programs are Paddle's, with as few programs as can be."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest

import tiny
from compilation.comparison import BY_PADDLE, Counted, difference, needs_openvino, programs_alone
from pipelines.test_images import CASES
from pipelines.whole import Draw, start
from ppdiffusers_tome import apply_tome, compile_cpu, get_tome, remove_tome
from ppdiffusers_tome.compilation import contents
from ppdiffusers_tome.compilation.twin import COMPILED

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
CONTROL = ("controlnet_img2img", "sdxl_controlnet")
STEPS = 12


def draw_pair(name: str, settings: dict[str, Any]) -> tuple[Any, Draw, np.ndarray]:
    """Return a compiled pipeline with its function to draw, and the image of the same without."""
    images = []
    for is_compiled in (False, True):
        pipe, draw = start(lambda: set_steps(*(small() if name == "small" else CASES[name]())))
        pipe.apply_tome(**settings)
        if is_compiled:
            compile_cpu(pipe)
        else:
            images.append(draw())
    return pipe, draw, images[0]


def small() -> tuple[Any, Any]:
    """Text to image by a UNet of one level, of which a program is made in a second."""
    given = dict(latents=tiny.latent(1), output_type="np", height=32, width=32, num_inference_steps=STEPS)
    return tiny.pipeline(unet=tiny.small_unet()), dict(given, **tiny.PROMPT)


def set_steps(pipe: Any, call: Any) -> tuple[Any, Any]:
    return pipe, dict(call, num_inference_steps=STEPS) if isinstance(call, dict) else call


def cases() -> list[Any]:
    every = [(name, settings) for name in PIPELINES for settings in SETTINGS]
    return [pytest.param(*each, marks=() if each in QUICK else pytest.mark.sweep) for each in every]


@pytest.mark.parametrize(("name", "settings"), cases())
def test_images_are_those_of_paddle(name: str, settings: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s)ToMe: cache=")
        pipe, draw, expected = draw_pair(name, SETTINGS[settings])
    with programs_alone():
        for _ in range(2):
            assert difference(draw(), expected) <= 1e-4
    if settings in PROGRAMS and name in ("small", "text_to_image"):
        assert len(vars(pipe.unet)[COMPILED]._programs) == PROGRAMS[settings]


def test_what_a_cache_reports_is_that_of_paddle() -> None:
    reports = []
    for is_compiled in (False, True):
        pipe, draw = start(lambda: set_steps(*CASES["controlnet_img2img"]()))
        pipe.apply_tome(ratio=0, cache=0.3)
        if is_compiled:
            compile_cpu(pipe)
        draw()
        reports.append([replace(entry.last_image, cache_bytes=0) for entry in pipe.tome.entries])
        assert all(80_000 < entry.last_image.cache_bytes < 200_000 for entry in pipe.tome.entries)
    assert reports[0] == reports[1]
    assert all(report.num_skipped > 0 for report in reports[1])


def test_a_skipped_step_runs_a_program_of_few_layers() -> None:
    pipe, draw, _ = draw_pair("text_to_image", dict(ratio=0, cache=0.2))
    draw()
    programs = vars(pipe.unet)[COMPILED]._programs.values()
    numbers = [len(each._request.get_compiled_model().get_runtime_model().get_ops()) for each in programs]
    assert min(numbers) < 0.3 * max(numbers)


def test_each_kind_of_step_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps that merge, and those that do not."""
    _, draw, _ = draw_pair("small", dict(ratio=0.5, start=0.5))
    counted = Counted(monkeypatch)
    for expected in (2, 2):
        draw()
        assert counted.calls == expected


def test_a_ramp_has_a_program_for_each_number_of_tokens() -> None:
    """Two ratios that merge as many tokens are one."""
    pipe, draw, expected = draw_pair("small", dict(ratio=(0.5, 0.49)))
    assert difference(draw(), expected) <= 1e-4
    layouts = len(vars(pipe.unet)[COMPILED]._programs)
    assert 1 < layouts < STEPS


def test_settings_without_a_pipeline() -> None:
    """Ramps go by the timestep; a cache has no effect, as a line says."""
    model, plain = (apply_tome(tiny.small_unet(), (0.6, 0.2)) for _ in range(2))
    compile_cpu(model)
    for timestep in (950, 500, 20):
        with programs_alone():
            found = tiny.run_unet(model, timestep=timestep)
        assert difference(found, tiny.run_unet(plain, timestep=timestep)) <= 1e-4
    apply_tome(model, 0.5, cache=0.2)
    with pytest.warns(UserWarning, match="no effect here"):
        found = tiny.run_unet(model)
    assert difference(found, tiny.run_unet(apply_tome(remove_tome(plain), 0.5))) <= 1e-4


class _Scaling(ppdiffusers.UNet2DConditionModel):
    """Gets its timestep as FLUX does, a thousandth."""

    def forward(self, sample: paddle.Tensor, timestep: Any, *args: Any, **kwargs: Any) -> Any:
        return super().forward(sample, timestep * 1000, *args, **kwargs)


@pytest.mark.parametrize("settings", [dict(ratio=0, cache=0.3), dict(ratio=0.5, end=0.5)], ids=str)
def test_a_model_that_changes_its_timestep(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Paddle goes by the timestep that it embeds, as without compiling."""
    monkeypatch.setattr(contents, "_KNOWN", {*contents._KNOWN, __name__.partition(".")[0]})
    models = [tiny.small_unet() for _ in range(2)]
    for model in models:
        model.__class__ = _Scaling
    pipes = [tiny.Sampler(apply_tome(model, **settings), tiny.scheduler()) for model in models]
    compile_cpu(pipes[1])

    def call(unet: Any, number: int, timestep: float) -> np.ndarray:
        return tiny.run_unet(unet, timestep=paddle.to_tensor([timestep / 1000]))

    with pytest.warns(UserWarning, match="it embeds another timestep than it gets"):
        expected, found = (np.array(pipe(call, steps=STEPS)) for pipe in pipes)
    assert difference(found, expected) <= 1e-6


def test_a_number_with_a_fraction_between_tensors() -> None:
    """Models cut it off, and not that of a tensor; none stands for the other."""
    model, plain = (apply_tome(tiny.small_unet(), 0.5, end=0.5) for _ in range(2))
    compile_cpu(model)
    for timestep in (paddle.to_tensor([700.25]), 700.25, 499.5, paddle.to_tensor([700.25])):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=f"(?s).*{BY_PADDLE}")
            found = tiny.run_unet(model, timestep=timestep)
        assert difference(found, tiny.run_unet(plain, timestep=timestep)) <= 1e-4
    assert set(vars(model)[COMPILED]._keeps_timestep.values()) == {True, False}


def test_several_calls_a_step() -> None:
    """Two images in turns, and a call that belongs to no step."""
    text = tiny.text().shape[1:]
    texts = {seed: tiny.array((2, *text), seed=seed) for seed in (2, 3)}

    def call(unet: Any, number: int, timestep: float) -> np.ndarray:
        return np.stack([unet(tiny.latent() * seed, timestep, texts[seed]).sample.numpy() for seed in (2, 3)])

    pipes = [
        tiny.Sampler(apply_tome(tiny.small_unet(), 0.5, cache=0.3, reuse_steps=2), tiny.scheduler()) for _ in range(2)
    ]
    compile_cpu(pipes[1])
    with programs_alone():
        expected, found = (np.array(pipe(call, steps=STEPS)) for pipe in pipes)
    assert difference(found, expected) <= 1e-4
    assert get_tome(pipes[1].unet).entries[0].last_image.num_skipped == 8


def test_a_step_that_paddle_computes_between_two_of_programs() -> None:
    """What one leaves the other goes on with."""
    pipes = [
        tiny.Sampler(apply_tome(tiny.small_unet(), 0.5, cache=0.3, reuse_steps=3), tiny.scheduler()) for _ in range(2)
    ]
    compile_cpu(pipes[1])

    def call(unet: Any, number: int, timestep: float) -> np.ndarray:
        with paddle.amp.auto_cast(
            enable=number % 3 == 1 and pipes[1].unet is unet, level="O1", custom_black_list=BLACK
        ):
            return tiny.run_unet(unet, timestep=timestep)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f"(?s).*{BY_PADDLE}")
        expected, found = (np.array(pipe(call, steps=STEPS)) for pipe in pipes)
    assert difference(found, expected) <= 1e-4


# Nothing is rounded, so that the images are the same.
BLACK = {"matmul", "matmul_v2", "conv2d", "mul", "linear", "depthwise_conv2d", "bmm", "einsum", "flash_attn"}


def test_the_model_of_photographs(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 dB or more, with all settings that README advises."""

    def load() -> Any:
        pipe = ppdiffusers.StableDiffusionPipeline.from_pretrained(str(tiny.PHOTOGRAPHS), safety_checker=None)
        pipe.set_progress_bar_config(disable=True)
        for model in (pipe.unet, pipe.vae):
            model.eval()
        return pipe.apply_tome("balanced", cache=0.2)

    def draw(pipe: Any) -> np.ndarray:
        given = dict(latents=tiny.array((1, 4, 16, 16), seed=1), height=128, width=128, num_inference_steps=10)
        return pipe("a cat", **given, output_type="np", guidance_scale=1.5).images

    expected, counted, pipe = draw(load()), Counted(monkeypatch), compile_cpu(load())
    with programs_alone():
        draw(pipe)
        before, image = counted.calls, draw(pipe)
    assert counted.calls == before
    assert -10 * np.log10(np.mean((image - expected) ** 2)) >= 80


def test_a_copy_with_other_settings() -> None:
    pipe, draw, expected = draw_pair("small", dict(ratio=0.5, start=0.2))
    copied = copy.deepcopy(pipe.unet)
    remove_tome(copied)
    assert difference(draw(), expected) <= 1e-4
    assert difference(tiny.run_unet(copied), tiny.run_unet(remove_tome(pipe).unet)) <= 1e-6

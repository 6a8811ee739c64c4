"""Which call of a denoiser this is, and which step of which image: told by what runs, never assumed."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest
from paddle import nn
from ppdiffusers.pipelines.controlnet import MultiControlNetModel

import tiny
from ppdiffusers_tome import apply_tome
from ppdiffusers_tome.patching.attach import list_attached_blocks


class Sampler(nn.Layer):
    """A whole denoising as one layer, as LCM's training model and exported samplers are."""

    def __init__(self, unet: Any, steps: int = 4) -> None:
        super().__init__()
        self.unet, self.timesteps = unet, [900 - 200 * step for step in range(steps)]

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        for timestep in self.timesteps:
            x = x - 0.3 * self.unet(x, timestep, tiny.text()).sample
        return x


SCHEDULES = [dict(start=0.5), dict(end=0.5), dict(ratio=(0.7, 0.1)), dict(reuse_steps=2)]


@pytest.mark.parametrize("settings", [{}, *SCHEDULES], ids=str)
def test_calls_within_a_layer_are_calls_of_the_denoiser(settings: dict[str, Any]) -> None:
    """Whether ToMe is applied to the layer around a denoiser or to the denoiser is the same."""
    around, inside = Sampler(tiny.unet()), Sampler(tiny.unet())
    apply_tome(around, **{"ratio": 0.5, **settings})
    apply_tome(inside.unet, **{"ratio": 0.5, **settings})
    with paddle.no_grad():
        expected = inside(tiny.latent()).numpy()
        assert np.array_equal(around(tiny.latent()).numpy(), expected)
    # The denoiser by itself, with ToMe on the layer around it, has its timestep.
    for timestep in (900, 100):
        expected = tiny.run_unet(inside.unet, timestep=timestep)
        assert np.array_equal(tiny.run_unet(around.unet, timestep=timestep), expected)


def run_controlnets(model: Any, images: list[paddle.Tensor]) -> list[np.ndarray]:
    with paddle.no_grad():
        down, middle = model(
            tiny.latent(), 500, tiny.text(), images, conditioning_scale=[1.0] * len(images), return_dict=False
        )
    return [each.numpy() for each in (*down, middle)]


@pytest.mark.parametrize("settings", [{}, dict(reuse_steps=2)], ids=str)
def test_controlnets_of_one_model_keep_to_themselves(settings: dict[str, Any]) -> None:
    images = [tiny.array((2, 3, 32, 32), seed=seed) for seed in (3, 4)]
    multi = MultiControlNetModel([tiny.controlnet(), tiny.controlnet()])
    apply_tome(multi, 0.5, **settings)
    alone = [run_controlnets(apply_tome(MultiControlNetModel([tiny.controlnet()]), 0.5, **settings), [image])
             for image in images]  # fmt: skip
    expected = [sum(parts) for parts in zip(*alone, strict=True)]
    for got, right in zip(run_controlnets(multi, images), expected, strict=True):
        assert np.abs(got - right).max() <= 1e-5
    assert len({id(override.state) for _, _, override in list_attached_blocks(multi)}) == 2


def run_img2img(pipe: Any) -> None:
    image = paddle.tanh(tiny.array((1, 3, 32, 32), seed=6))
    pipe(image=image, strength=0.3, num_inference_steps=10, output_type="latent", **tiny.PROMPT)


@pytest.mark.parametrize(
    ("steps", "settings", "message"),
    [
        (None, dict(end=0.5), "no step of this image merges with start=0 and end=0.5: img2img runs only the last part"),
        (None, dict(start=0.5), "every step of this image merges with start=0.5 and end=1: .*img2img"),
        (None, dict(start=0.8), None),
        (8, dict(end=0.9), "every step of this image merges with start=0 and end=0.9: .* the last begins at 1 - 1/N"),
        (8, dict(end=0.875), None),
        (4, dict(ratio=(0.002, 0.001)), None),
        (4, dict(ratio=0.001, start=0.2, end=0.8), None),
        (12, dict(ratio=0, start=0.2, cache=0.2), None),
        (4, dict(sx=32, sy=32, end=0.95), "smaller than one cell"),
        (12, dict(start=0.75, end=0.8, cache=0.1), "no step .* a cache may skip those inside"),
    ],
    ids=str,
)
def test_idle_start_and_end_are_logged(steps: int | None, settings: dict[str, Any], message: str | None) -> None:
    """Once, where they leave no step merged or none unmerged."""
    pipe = tiny.pipeline(ppdiffusers.StableDiffusionPipeline if steps else ppdiffusers.StableDiffusionImg2ImgPipeline)
    pipe.apply_tome(**{"ratio": 0.5, **settings})
    with warnings.catch_warnings(record=True) as logged:
        warnings.simplefilter("always")
        for _ in range(2):
            tiny.run_pipeline(pipe, steps=steps) if steps else run_img2img(pipe)
    messages = [str(warning.message) for warning in logged if "ToMe" in str(warning.message)]
    assert len(messages) == (message is not None)
    assert message is None or re.search(message, messages[0])

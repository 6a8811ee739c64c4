"""One patched UNet, many calls: several batches in one run of a pipeline, several sizes at once in threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from ppdiffusers import StableDiffusionPanoramaPipeline

import tiny
from ppdiffusers_tome import apply_tome


def test_every_call_of_a_panorama_is_that_of_a_fresh_unet() -> None:
    """Three views in batches of two: the UNet is called with two views, then with one, at every step."""
    pipe = tiny.pipeline(StableDiffusionPanoramaPipeline)
    negative = tiny.array((1, tiny.TEXT_TOKENS, tiny.CROSS_DIM), seed=4)
    # Views are 64 points wide and start every 8 points; 8 rows, so that there is one row of them.
    inputs = dict(
        prompt_embeds=tiny.text(1), negative_prompt_embeds=negative, latents=tiny.latent(1, 8, 80), height=64,
        width=640, view_batch_size=2, num_inference_steps=2, output_type="latent",
    )  # fmt: skip
    plain = np.asarray(pipe(**inputs).images)
    pipe.apply_tome(ratio=0.5)
    calls: list[tuple[Any, Any, Any]] = []
    hook = pipe.unet.register_forward_post_hook(
        lambda unet, inputs, output: calls.append((*inputs[:2], getattr(output, "sample", output)))
    )
    merged = np.asarray(pipe(**inputs).images)
    hook.remove()
    assert np.abs(merged - plain).max() > 1e-3
    assert [latent.shape for latent, _, _ in calls] == [[4, 4, 8, 64], [2, 4, 8, 64]] * 2
    for latent, timestep, output in calls:
        fresh = apply_tome(tiny.unet(), 0.5)
        text = paddle.concat([negative, tiny.text(1)] * (latent.shape[0] // 2))
        with paddle.no_grad():
            alone = fresh(latent, timestep, encoder_hidden_states=text).sample
        assert np.array_equal(output.numpy(), alone.numpy())
    assert np.array_equal(np.asarray(pipe.remove_tome()(**inputs).images), plain)

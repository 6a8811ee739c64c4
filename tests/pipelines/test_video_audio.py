"""Pipelines of video and sound, end to end: merging reaches attention, changes what comes out, and leaves no trace."""

from collections.abc import Callable

import numpy as np
import paddle
import pytest
from ppdiffusers.pipelines.text_to_video_synthesis.pipeline_text_to_video_zero import CrossFrameAttnProcessor2_5

import tiny
from pipelines.videos import CASES, video_to_video
from pipelines.whole import Made, check_merging, start
from ppdiffusers_tome import apply_tome
from zoo.specimen import attention_anywhere


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_pipeline_merges_and_comes_back(make: Callable[[], Made]) -> None:
    check_merging(*start(make), begins_in_the_middle=make is video_to_video)


def test_attention_to_the_first_frame_merges() -> None:
    """With the processor that text to video without training has on a GPU, which keeps no maps."""
    unet = tiny.unet()
    unet.set_attn_processor(CrossFrameAttnProcessor2_5(batch_size=2))

    def run() -> np.ndarray:
        with attention_anywhere(), paddle.no_grad():
            return unet(tiny.latent(4), 500, encoder_hidden_states=tiny.text(4)).sample.numpy()

    plain = run()
    apply_tome(unet, 0.5)
    merged = run()
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-3

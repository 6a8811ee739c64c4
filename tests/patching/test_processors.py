"""Attention processors and adapters stay the user's, set before or after ``apply_tome``."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import paddle
import pytest

import tiny
from patching.processors import CASES, Case, load_lora, set_sliced, set_xformers
from ppdiffusers_tome import ToMeConfig, apply_tome, remove_tome
from ppdiffusers_tome.merging.rotary import RotaryEmbedding
from ppdiffusers_tome.patching.adapters.adapter import MergePoint
from ppdiffusers_tome.patching.overrides.merge import NormOverride
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
from ppdiffusers_tome.patching.state.point_call import PointCall, UnmergeableError
from zoo.specimen import attention_anywhere


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    with attention_anywhere() if request.param.prepare is set_xformers else contextlib.nullcontext():
        yield request.param


def test_processor_works_before_and_after_in_any_order(case: Case, tmp_path: Path) -> None:
    before, after = tiny.unet(**case.unet), tiny.unet(**case.unet)
    untouched = tiny.run_unet(before)

    case.prepare(before, tmp_path)
    plain = tiny.run_unet(before, **case.call)
    apply_tome(before, **tiny.MERGE_ALL)
    merged = tiny.run_unet(before, **case.call)
    assert np.isfinite(merged).all()
    assert np.abs(merged - plain).max() > 1e-3

    apply_tome(after, **tiny.MERGE_ALL)
    usual = tiny.run_unet(after)
    case.prepare(after, tmp_path)
    assert np.array_equal(tiny.run_unet(after, **case.call), merged)

    assert np.array_equal(tiny.run_unet(remove_tome(before), **case.call), plain)
    assert np.array_equal(tiny.run_unet(remove_tome(after), **case.call), plain)
    if case.prepare in (set_sliced, set_xformers):  # these two only compute the same otherwise
        assert np.abs(merged - usual).max() <= 1e-5
    else:
        assert np.abs(plain - untouched).max() > 1e-3


def test_unfusing_a_lora_under_tome(tmp_path: Path) -> None:
    """ppdiffusers drops a LoRA when it fuses it, so unfusing gives the UNet without one."""
    unet = apply_tome(tiny.unet(), **tiny.MERGE_ALL)
    without = tiny.run_unet(unet)
    load_lora(unet, tmp_path)
    loaded = tiny.run_unet(unet)
    assert np.abs(loaded - without).max() > 1e-2
    unet.fuse_lora()
    # Fusing rounds, and a source between two destinations may then take the other.
    fused = np.abs(tiny.run_unet(unet) - loaded)
    assert np.median(fused) <= 1e-3
    assert fused.max() <= 0.03 * np.abs(loaded - without).max()
    unet.unfuse_lora()
    assert np.abs(tiny.run_unet(unet) - without).max() <= 1e-3


def test_norms_where_attention_has_as_many_heads_as_tokens() -> None:
    """Before the split into heads the axis of tokens is known, as in Wan; elsewhere attention runs unmerged."""
    rotation = RotaryEmbedding((tiny.array((2, 4)), tiny.array((2, 4), seed=1)), 2).grid_rotation
    point = PointCall(None, None, MergePoint("attn"), rotations={"norm_q": rotation})  # type: ignore[arg-type]
    norm = NormOverride(DenoiserState(ToMeConfig()), paddle.nn.Identity(), "norm_q", num_heads=2)
    x = tiny.array((1, 2, 8), seed=2)
    by_head = paddle.stack([x[:, :, :4], x[:, :, 4:]], axis=1)
    expected = paddle.concat([*rotation.rotate(by_head).unbind(axis=1)], axis=-1)
    assert np.array_equal(norm.run(point, lambda x: x, x).numpy(), expected.numpy())
    with pytest.raises(UnmergeableError, match="attention on 2 tokens has 2 heads"):
        norm.run(point, lambda x: x, by_head)

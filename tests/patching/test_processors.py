"""Attention processors and adapters stay the user's, set before or after ``apply_tome``."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from ppdiffusers.models.attention_processor import Attention, AttnProcessor, SlicedAttnProcessor, XFormersAttnProcessor
from ppdiffusers.models.lora import LoRALinearLayer

import tiny
from ppdiffusers_tome import ToMeConfig, apply_tome, remove_tome
from ppdiffusers_tome.merging.rotary import RotaryEmbedding
from ppdiffusers_tome.patching.adapters.adapter import MergePoint
from ppdiffusers_tome.patching.overrides.merge import NormOverride
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
from ppdiffusers_tome.patching.state.point_call import PointCall, UnmergeableError
from zoo.specimen import attention_anywhere, keep_random_state


class Counting(AttnProcessor):
    """A user's own: counts its calls, and attends to twice the value."""

    calls = 0

    def __call__(self, attn: Any, hidden_states: paddle.Tensor, *args: Any, **kwargs: Any) -> paddle.Tensor:
        self.calls += 1
        return 2 * super().__call__(attn, hidden_states, *args, **kwargs)


def set_xformers(unet: Any, folder: Path) -> None:
    unet.set_attn_processor(XFormersAttnProcessor(attention_op="math"))


def set_counting(unet: Any, folder: Path) -> None:
    unet.set_attn_processor(Counting())


def set_sliced(unet: Any, folder: Path) -> None:
    unet.set_attention_slice(1)
    assert any(isinstance(processor, SlicedAttnProcessor) for processor in unet.attn_processors.values())


def load_lora(unet: Any, folder: Path) -> None:
    """Load a LoRA from a file, written first from another UNet as a training script does."""
    if not any(folder.iterdir()):
        trained = tiny.unet()
        for attention in trained.sublayers():
            if isinstance(attention, Attention):
                for linear in (attention.to_q, attention.to_k, attention.to_v, attention.to_out[0]):
                    sizes = dict(in_features=linear.in_features, out_features=linear.out_features)
                    linear.set_lora_layer(tiny.build(LoRALinearLayer, **sizes, rank=2))
                    assert linear.lora_layer is not None
        trained.save_attn_procs(str(folder), to_diffusers=False)
    unet.load_attn_procs(str(folder), from_diffusers=False)


def fuse_lora(unet: Any, folder: Path) -> None:
    load_lora(unet, folder)
    unet.fuse_lora()


def load_ip_adapter(unet: Any, folder: Path) -> None:
    """Through ppdiffusers' own loader, from a state dict as in a file."""
    weights, number = {}, 1
    for name in unet.attn_processors:
        if name.endswith("attn2.processor"):
            attention = dict(unet.named_sublayers())[name.removesuffix(".processor")]
            for key in ("to_k_ip.weight", "to_v_ip.weight"):
                weights[f"{number}.{key}"] = 0.5 * tiny.array((tiny.CROSS_DIM, attention.inner_dim), seed=number)
            number += 2
    width = 4 * tiny.CROSS_DIM
    projection = {
        "proj.weight": tiny.array((6, width), seed=1), "proj.bias": tiny.array((width,), seed=2),
        "norm.weight": paddle.ones([tiny.CROSS_DIM]), "norm.bias": paddle.zeros([tiny.CROSS_DIM]),
    }  # fmt: skip
    with keep_random_state():
        unet._load_ip_adapter_weights({"ip_adapter": weights, "image_proj": projection}, from_diffusers=False)
    # Of the two that there are ppdiffusers takes the one that is like its others.
    assert any(type(processor).__name__.startswith("IPAdapter") for processor in unet.attn_processors.values())


@dataclass(frozen=True)
class Case:
    """One thing a user does to a UNet, and what it is then called with."""

    prepare: Callable[[Any, Path], None] = lambda unet, folder: None
    call: dict[str, Any] = field(default_factory=dict)
    unet: dict[str, Any] = field(default_factory=dict)


CASES = {
    "custom": Case(set_counting),
    "sliced": Case(set_sliced),
    "xformers": Case(set_xformers),
    "lora": Case(load_lora),
    "lora-scaled": Case(load_lora, dict(cross_attention_kwargs=dict(scale=0.5))),
    "lora-fused": Case(fuse_lora),
    "ip-adapter": Case(load_ip_adapter, dict(added_cond_kwargs=dict(image_embeds=tiny.array((2, 6), seed=8)))),
    "gligen": Case(
        call=dict(cross_attention_kwargs=dict(gligen=dict(
            boxes=paddle.to_tensor(np.random.default_rng(0).random((2, 3, 4)).astype(np.float32)),
            positive_embeddings=tiny.array((2, 3, tiny.CROSS_DIM), seed=9),
            masks=paddle.to_tensor([[1.0, 1, 0], [1, 0, 0]]),
        ))),
        unet=dict(attention_type="gated"),
    ),
    "text-mask": Case(call=dict(encoder_attention_mask=paddle.to_tensor([[1.0, 1, 1, 0, 0], [1, 1, 1, 1, 0]]))),
}  # fmt: skip


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

"""Attention processors and adapters that a user sets on a UNet."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from ppdiffusers.models.attention_processor import Attention, AttnProcessor, SlicedAttnProcessor, XFormersAttnProcessor
from ppdiffusers.models.lora import LoRALinearLayer

import tiny
from zoo.specimen import keep_random_state


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
    """Load a LoRA from a file that another UNet wrote before."""
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
    """A user's change of a UNet, and the arguments of its call."""

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

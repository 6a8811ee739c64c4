"""AttnBlock: Wuerstchen's prior and decoder. Keys are the picture's tokens followed by the text's; the latter stay."""

from __future__ import annotations

from ppdiffusers_tome.blocks.adapter import ATTENTION, BlockAdapter, Section

_KEYS = ("attention.to_k", "attention.to_v")

ADAPTER = BlockAdapter(
    block_class="AttnBlock",
    inside=("WuerstchenPrior", "WuerstchenDiffNeXt"),
    sections={
        ATTENTION: Section(
            ("attention.to_q", *_KEYS), "attention.to_out.0", trailing=True, keys=_KEYS
        )
    },
    own_host=True,
    noisiest=1,
    usable=lambda block: block.self_attn,
)

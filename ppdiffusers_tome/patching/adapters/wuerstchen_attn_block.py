"""AttnBlock: Wuerstchen's prior and decoder, whose keys end with the text."""

from __future__ import annotations

from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, LAST, BlockAdapter, MergePoint, UNetParts

_KEYS = ("attention.to_k", "attention.to_v")

# Of the decoder, which works on patches of its latent. The prior is no UNet.
_UNET = UNetParts(
    "down_blocks", "mid_block", "up_blocks", halves_at_start=True, patch=lambda unet: unet.config.patch_size
)

ADAPTER = BlockAdapter(
    block_class="AttnBlock",
    parent_classes=("WuerstchenPrior", "WuerstchenDiffNeXt"),
    points={
        ATTENTION: (MergePoint(("attention.to_q", *_KEYS), "attention.to_out.0", text=LAST, keys=_KEYS),),
    },
    block_is_parent=True,
    unets=(_UNET,),
    max_timestep=1,
    can_merge=lambda block: block.self_attn,
)

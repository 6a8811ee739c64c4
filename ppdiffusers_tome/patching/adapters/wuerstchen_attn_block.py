"""AttnBlock: Wuerstchen's prior and decoder. Keys are the picture's tokens followed by the text's; the latter stay."""

from __future__ import annotations

from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, LAST, BlockAdapter, Section, UNetParts

_KEYS = ("attention.to_k", "attention.to_v")

# The decoder's; it works on patches of its latent. The prior is no UNet.
_UNET = UNetParts(
    "down_blocks", "mid_block", "up_blocks", halves_at_its_beginning=True, patch=lambda unet: unet.config.patch_size
)

ADAPTER = BlockAdapter(
    block_class="AttnBlock",
    inside=("WuerstchenPrior", "WuerstchenDiffNeXt"),
    sections={
        ATTENTION: (Section(("attention.to_q", *_KEYS), "attention.to_out.0", others=LAST, keys=_KEYS),),
    },
    block_is_parent=True,
    unets=(_UNET,),
    max_timestep=1,
    usable=lambda block: block.self_attn,
)

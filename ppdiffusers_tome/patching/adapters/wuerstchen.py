"""AttnBlock: Wuerstchen's prior and decoder, whose keys end with the text."""

from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, LAST, BlockAdapter, MergePoint, UNetParts, patch_size

# Of the decoder, which works on patches of its latent. The prior is no UNet.
_UNET = UNetParts("down_blocks", "mid_block", "up_blocks", halves_at_start=True, patch=patch_size)

ADAPTERS = (
    BlockAdapter(
        block_class="AttnBlock",
        parent_classes=("WuerstchenPrior", "WuerstchenDiffNeXt"),
        points={ATTENTION: (MergePoint("attention", merges_inside=True, text=LAST, prepares_mask=True),)},
        block_is_parent=True,
        unets=(_UNET,),
        max_timestep=1,
        can_merge=lambda block: block.self_attn,
    ),
)

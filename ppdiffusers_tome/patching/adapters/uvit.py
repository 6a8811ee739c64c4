"""UViT and UniDiffuser: timesteps, text and more precede the image."""

from ppdiffusers_tome.patching.adapters.adapter import ATTENTION, MLP, BlockAdapter, MergePoint, patch_size

_UVIT = BlockAdapter(
    block_class="Block",
    parent_classes=("UViTT2IModel",),
    points={ATTENTION: (MergePoint("attn"),), MLP: (MergePoint("mlp"),)},
    grid_layer="patch_embed",
    downsample=patch_size,
    prefix=lambda parent, latent: parent.extras,
)
_UNIDIFFUSER = BlockAdapter(
    block_class="UniDiffuserBlock",
    parent_classes=("UniDiffuserModel",),
    points={ATTENTION: (MergePoint("attn1", prepares_mask=True),), MLP: (MergePoint("ff"),)},
    grid_layer="vae_img_in",
    downsample=patch_size,
    # Two timesteps, any data type, the text and the image embedding.
    prefix=lambda parent, latent: 3 + bool(parent.use_data_type_embedding) + parent.num_text_tokens,
)
ADAPTERS = (_UVIT, _UNIDIFFUSER)

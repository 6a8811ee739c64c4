"""HunyuanVideoSingleTransformerBlock, whose attention puts the text last."""

from __future__ import annotations

from dataclasses import replace

from ppdiffusers_tome.patching.adapters import hunyuan_video_transformer_block
from ppdiffusers_tome.patching.adapters.adapter import ATTENTION

ADAPTER = replace(
    hunyuan_video_transformer_block.ADAPTER,
    block_class="HunyuanVideoSingleTransformerBlock",
    points={ATTENTION: (hunyuan_video_transformer_block.ATTENTION_OF_HUNYUAN,)},
)

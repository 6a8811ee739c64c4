"""UTransformerBlock: UniDiffuser's other kind of block, its norms beside the residual. The same tokens never merge."""

from __future__ import annotations

from dataclasses import replace

from ppdiffusers_tome.patching.adapters import unidiffuser_block

ADAPTER = replace(unidiffuser_block.ADAPTER, block_class="UTransformerBlock")

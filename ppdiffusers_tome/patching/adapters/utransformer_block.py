"""UTransformerBlock of UniDiffuser, whose norms are not on the residual path."""

from __future__ import annotations

from dataclasses import replace

from ppdiffusers_tome.patching.adapters import unidiffuser_block

ADAPTER = replace(unidiffuser_block.ADAPTER, block_class="UTransformerBlock")

"""``ppdiffusers-tome bench`` with the limit ``free``: as many tokens dropped by slicing, at no cost.

    PYTHONPATH=tests python -m benchmarks.results --output outputs

``results_page`` makes the table of docs/en/results/index.md from its bench.json.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import paddle

from ppdiffusers_tome.patching.adapters.adapter import ATTENTION
from ppdiffusers_tome.patching.blocks import find_blocks, find_layer
from ppdiffusers_tome.tools.bench.variants import VARIANTS, Variant
from ppdiffusers_tome.tools.cli.program import main as run_command

FREE = "free"


def drop_tokens(model: Any, ratio: float) -> list[Any]:
    """Drop tokens before self-attention by slicing, and return zeros instead; return the hooks.

    The zeros are made once per shape and not copied, so nothing that matches, merges and unmerges can be faster.
    """
    zeros: dict[tuple, paddle.Tensor] = {}

    def drop(layer: Any, inputs: tuple) -> tuple:
        layer.num_tokens_before = inputs[0].shape[1]
        return (inputs[0][:, : layer.num_tokens_before - int(layer.num_tokens_before * ratio)], *inputs[1:])

    def restore(layer: Any, inputs: tuple, output: paddle.Tensor) -> paddle.Tensor:
        shape = (output.shape[0], layer.__dict__.pop("num_tokens_before"), output.shape[2])
        if (shape, output.dtype) not in zeros:
            zeros[shape, output.dtype] = paddle.zeros(shape, dtype=output.dtype)
        return zeros[shape, output.dtype]

    hooks, blocks = [], find_blocks(model)
    for block in blocks:
        if block.level == min(each.level for each in blocks):
            layer = find_layer(block.block, block.adapter.points[ATTENTION][0].layer)
            hooks += [layer.register_forward_pre_hook(drop), layer.register_forward_post_hook(restore)]
    return hooks


def main(argv: Sequence[str] | None = None) -> int:
    VARIANTS[FREE] = Variant(
        "the limit: as many tokens dropped by slicing, without matching or unmerging", drop_tokens, needs_unet=True
    )
    return run_command(["bench", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())

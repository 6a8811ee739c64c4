"""What a block may hold besides plain layers: position embeddings, masks, chunks, prefixes of its own."""

from typing import Any

import numpy as np
import paddle
import pytest
from ppdiffusers.models import Transformer2DModel
from ppdiffusers.models.attention import BasicTransformerBlock

import tiny
from patching.helpers import chunk, first_arguments
from ppdiffusers_tome import apply_tome, remove_tome
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.merging.matching import match_tokens
from ppdiffusers_tome.merging.partition import regular_partition

SIDE, CHANNELS = 8, 8


def transformer(**of_block: Any) -> Transformer2DModel:
    model = tiny.transformer()
    heads = dict(num_attention_heads=2, attention_head_dim=4, cross_attention_dim=tiny.CROSS_DIM)
    block = tiny.build(BasicTransformerBlock, dim=CHANNELS, **heads, **of_block)
    model.transformer_blocks = paddle.nn.LayerList([block])
    return model


@paddle.no_grad()
def run(model: Transformer2DModel, **kwargs: Any) -> np.ndarray:
    return model(tiny.array((2, CHANNELS, SIDE, SIDE)), tiny.text(), **kwargs).sample.numpy()


@paddle.no_grad()
def run_block_by_hand(block: Any, x: paddle.Tensor, num_merged: int, mask: paddle.Tensor | None = None) -> np.ndarray:
    """The block written out with ToMe around attn1, as in the paper: after the norm and the position embedding."""
    matching = match_tokens(x, regular_partition(Grid(SIDE, SIDE), 2, 2), num_merged)
    hidden = block.norm1(x)
    if block.pos_embed is not None:
        hidden = block.pos_embed(hidden)
    mask = None if mask is None else matching.reduce_mask(mask)
    x = matching.restore(block.attn1(matching.reduce(hidden), attention_mask=mask)) + x
    hidden = block.norm2(x)
    if block.pos_embed is not None:
        hidden = block.pos_embed(hidden)
    x = block.attn2(hidden, encoder_hidden_states=tiny.text()) + x
    return (block.ff(block.norm3(x)) + x).numpy()


@pytest.mark.parametrize("num_merged", [1, 2, 32, 47])
@pytest.mark.parametrize("special", ["", "positions", "mask"])
def test_a_block_equals_the_block_written_out(num_merged: int, special: str) -> None:
    """The port merges before positions are added, and gives every token behind the first those of another place."""
    embedding = dict(positional_embeddings="sinusoidal", num_positional_embeddings=SIDE * SIDE)
    model = transformer(**(embedding if special == "positions" else {}))
    block = model.transformer_blocks[0]
    keep = np.ones((2, SIDE * SIDE), np.float32)
    keep[0, 10:20], keep[1, ::9] = 0, 0
    masked = special == "mask"
    bias = paddle.to_tensor((1 - keep[:, None]) * -10000) if masked else None
    given = {"attention_mask": paddle.to_tensor(keep)} if masked else {}
    with first_arguments(block) as tokens:
        plain = run(model, **given)
    expected = run_block_by_hand(block, paddle.to_tensor(tokens[0]), num_merged, bias)
    outputs: list[np.ndarray] = []
    apply_tome(model, (num_merged + 0.5) / SIDE**2, use_rand=False)
    block.register_forward_post_hook(lambda layer, inputs, output: outputs.append(output.numpy()))
    merged = run(model, **given)
    assert np.abs(outputs[0] - expected).max() <= 1e-5
    assert np.abs(merged - plain).max() > 1e-5
    assert (np.abs(merged - run(model)).max() > 1e-4) == masked
    assert np.array_equal(run(remove_tome(model), **given), plain)


def test_text_mask_as_long_as_the_tokens_is_left_alone() -> None:
    """64 text tokens and an 8x8 grid: the mask of cross attention is not the mask of the grid."""
    text = tiny.array((2, 64, tiny.CROSS_DIM), seed=5)
    keep = paddle.to_tensor((np.arange(64) < 40).astype(np.float32)[None].repeat(2, axis=0))
    unet = apply_tome(tiny.unet(levels=1), 0.5, merge_crossattn=True)
    with paddle.no_grad():
        masked = unet(tiny.latent(2, 8, 8), 5, text, encoder_attention_mask=keep).sample.numpy()
        cut = unet(tiny.latent(2, 8, 8), 5, text[:, :40]).sample.numpy()
    assert np.abs(masked - cut).max() <= 1e-5


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.5, 0.7])
@pytest.mark.parametrize(("size", "dim"), [(32, 1), (64, 1), (1, 0)])
def test_merging_a_chunked_mlp_warns_once_and_leaves_it_unmerged(ratio: float, size: int, dim: int) -> None:
    """The port crashes where the chunk does not divide the tokens that are left."""
    unet = chunk(tiny.unet(), size, dim)
    expected = tiny.run_unet(apply_tome(unet, ratio, max_downsample=2))
    apply_tome(unet, ratio, max_downsample=2, merge_mlp=True)
    with pytest.warns(UserWarning, match=r"so it runs unmerged: feed-forward chunking") as caught:
        outputs = [tiny.run_unet(unet) for _ in range(2)]
    # A chunk of 64 is the whole of the coarser grid's tokens, which can merge.
    if (size, dim) != (64, 1):
        assert all(np.array_equal(output, expected) for output in outputs)
    assert len([w for w in caught if "ToMe" in str(w.message)]) == 1


@pytest.mark.filterwarnings("error:ToMe")
def test_without_merging_a_chunked_mlp_nothing_is_said() -> None:
    unet = apply_tome(tiny.unet(), 0.3, max_downsample=2)
    whole = tiny.run_unet(unet)
    assert np.abs(tiny.run_unet(chunk(unet, 32, 1)) - whole).max() <= 1e-5

"""Levels: how many times smaller than the latent a block's grid is, and which levels a setting reaches."""

from collections.abc import Callable

import paddle
import pytest
from paddle.nn import Layer

import tiny
from ppdiffusers_tome import NothingToMergeError, apply_tome, get_tome
from ppdiffusers_tome.patching.attach import list_attached_blocks
from ppdiffusers_tome.patching.blocks import find_blocks
from zoo import unet_score_sde


def levels(model: Layer) -> dict[str, int]:
    return {block.path.replace(".transformer_blocks.0", ""): block.level for block in find_blocks(model)}


def test_levels_of_a_unet_with_skips_beside_it() -> None:
    """The score SDE's blocks on the way up double by a layer of another name."""
    four = dict(
        block_out_channels=(32,) * 4, down_block_types=("SkipDownBlock2D",) * 3 + ("AttnSkipDownBlock2D",),
        up_block_types=("SkipUpBlock2D",) * 2 + ("AttnSkipUpBlock2D", "SkipUpBlock2D"),
    )  # fmt: skip
    found = levels(unet_score_sde.SPECIMEN.build(**four))
    assert {path.partition(".attentions")[0]: level for path, level in found.items()} == {
        "down_blocks.3": 8, "mid_block": 8, "up_blocks.2": 2
    }  # fmt: skip


@pytest.mark.parametrize("build", [tiny.unet, tiny.sdxl_unet, tiny.dit, tiny.controlnet])
def test_none_picks_the_finest_level_with_attention(build: Callable[[], Layer]) -> None:
    model = apply_tome(build())
    finest = min(levels(model).values())
    attached = {path.replace(".transformer_blocks.0", "") for path, *_ in list_attached_blocks(model)}
    assert attached == {path for path, level in levels(model).items() if level == finest}


@pytest.mark.parametrize(("max_downsample", "blocks"), [(1, 3), (2, 6), (4, 9), (8, 13), (None, 3)])
def test_max_downsample_reaches_levels_up_to_it(max_downsample: int | None, blocks: int) -> None:
    assert sum(get_tome(apply_tome(tiny.unet(levels=4), 0.5, max_downsample)).blocks.values()) == blocks


@pytest.mark.parametrize(
    ("build", "settings", "words"),
    [
        (tiny.sdxl_unet, dict(max_downsample=1), "levels of max_downsample=1; its blocks are at 2, so give one"),
        (tiny.sdxl_unet, dict(st=2), "st=2 merges tokens of several frames, .* leave st at 1"),
        (tiny.dit, dict(merge_attn=False, merge_crossattn=True), "has the layers that merge_crossattn=True needs"),
    ],
)
def test_what_the_model_does_not_have_is_refused_and_what_was_applied_stays(
    build: Callable[[], Layer], settings: dict, words: str
) -> None:
    model = apply_tome(build(), 0.5)
    before = tiny.snapshot(model)
    with pytest.raises(NothingToMergeError, match=words):
        apply_tome(model, 0.5, **settings)
    assert tiny.snapshot(model) == before


def test_blocks_of_a_unet_of_the_users_own_are_found_by_their_place() -> None:
    """Whatever they are called in it; a part with a longer name is no part of a UNet."""
    blocks = tiny.unet(levels=3).down_blocks
    unet, holder = Layer(), Layer()
    unet.down_blocks = paddle.nn.Sequential(*((f"stage_{number}", block) for number, block in enumerate(blocks)))
    assert levels(unet) == {f"down_blocks.stage_{number}.attentions.0": 2**number for number in range(3)}
    holder.my_down_blocks = unet.down_blocks
    assert set(levels(holder).values()) == {1}

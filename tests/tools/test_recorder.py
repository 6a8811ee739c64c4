"""``record_merging``: its records are the groups that merged, and nothing of it stays."""

from collections.abc import Callable

import numpy as np
import paddle
import ppdiffusers
import pytest
from ppdiffusers.pipelines.stable_diffusion.pipeline_stable_diffusion_sag import CrossAttnStoreProcessor

import tiny
from patching.helpers import StumbledError, failing_in, watch_blocks
from ppdiffusers_tome import NothingToMergeError, apply_tome, remove_tome
from ppdiffusers_tome.merging.grid import Grid
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.state.block_call import WATCHERS
from ppdiffusers_tome.tools.recorder import record_merging
from zoo import uvit


@pytest.mark.parametrize(("height", "width"), [(16, 16), (8, 24), (10, 14)])
@pytest.mark.parametrize("image", [-1, 0])
def test_groups_are_those_of_the_matching(height: int, width: int, image: int) -> None:
    unet = apply_tome(tiny.unet(), 0.5, max_downsample=2)
    with watch_blocks(unet) as told, record_merging(unet, image=image) as records:
        tiny.run_unet(unet, height=height, width=width)
    assert len(records) == len(told) == 7
    assert {record.block.path for record in records} == {*unet.tome.entries[0].paths}
    assert {(record.block.level, record.grid) for record in records} == {
        (1, Grid(height, width)),
        (2, Grid(-(-height // 2), -(-width // 2))),
    }
    for record, block in zip(records, told, strict=True):
        layout, matching = block.layout, block.reduction
        owner = matching.owner.numpy().reshape(matching.batch, -1)[image]
        together = owner[:, None] == owner[None]
        assert np.array_equal(record.groups[:, None] == record.groups[None], together)
        assert record.num_merged == matching.num_tokens - matching.num_left == layout.grid.num_merged(0.5)
        assert record.sizes.sum() == matching.num_tokens
        assert np.array_equal(record.merged.ravel(), together.sum(axis=1) > 1)


@pytest.mark.parametrize(
    ("build", "run"),
    [(tiny.unet, tiny.run_unet), (uvit.SPECIMEN.build, uvit.SPECIMEN.run), (tiny.dit, tiny.run_dit)],
    ids=["numbers", "the model is told, and tokens stand before the grid", "a block's norm is told"],
)
def test_calls_are_counted_and_timesteps_told(build: Callable[[], paddle.nn.Layer], run: tiny.Call) -> None:
    model = apply_tome(build(), 0.5)
    with record_merging(model) as records:
        for timestep in (900, 500):
            run(model, timestep=timestep)
    first = records[0].block.path
    told = [(record.call, record.timestep) for record in records if record.block.path == first]
    assert told == [(0, 900.0), (1, 500.0)]
    assert all(len(record.groups) == record.grid.num_tokens for record in records)


def test_pipelines_with_a_controlnet_name_their_denoisers() -> None:
    pipe = tiny.pipeline(ppdiffusers.StableDiffusionControlNetPipeline, controlnet=tiny.controlnet())
    apply_tome(pipe, 0.5)
    with record_merging(pipe) as records:
        tiny.run_pipeline(pipe, steps=3, image=tiny.array((1, 3, 32, 32), seed=3))
    merging = {(entry.denoiser, path) for entry in pipe.tome.entries for path in entry.paths}
    assert {denoiser for denoiser, _ in merging} == {"unet", "controlnet"}
    called = {(record.block.denoiser, record.block.path, record.call) for record in records}
    assert called == {(*block, call) for block in merging for call in range(3)}


def test_the_last_image_of_a_guided_pipeline_is_the_prompted_one() -> None:
    pipe = apply_tome(tiny.pipeline(), 0.5)
    with record_merging(pipe) as records:
        tiny.run_pipeline(pipe, steps=1, guidance_scale=5.0)
    first = tiny.scheduler()
    first.set_timesteps(1)
    groups = {}
    for name, text in (("prompted", tiny.text(1)), ("unprompted", tiny.array(tiny.text(1).shape, seed=4))):
        with record_merging(pipe.unet) as alone, paddle.no_grad():
            pipe.unet(tiny.latent(1), first.timesteps[0], text)
        groups[name] = np.stack([record.groups for record in alone])
    assert np.array_equal(np.stack([record.groups for record in records]), groups["prompted"])
    assert not np.array_equal(groups["prompted"], groups["unprompted"])


def test_watching_changes_nothing_and_ends_with_an_exception_too() -> None:
    unet = apply_tome(tiny.unet(), 0.5)
    with watch_blocks(unet) as told:
        before, own, output = tiny.snapshot(unet), list(WATCHERS), tiny.run_unet(unet)
        with record_merging(unet):
            assert np.array_equal(tiny.run_unet(unet), output)
        told.clear()
        with failing_in(unet.up_blocks[0]), pytest.raises(StumbledError), record_merging(unet) as records:
            tiny.run_unet(unet)
        assert own == WATCHERS
        assert tiny.snapshot(unet) == before
        assert len(records) == len(told) > 0
        tiny.run_unet(unet)
        assert len(told) > len(records)


def test_blocks_that_run_unmerged_leave_no_record() -> None:
    unet = apply_tome(tiny.unet(), 0.5, max_downsample=2, sx=4, sy=4)
    with record_merging(unet) as records, pytest.warns(UserWarning, match="smaller than one cell"):
        tiny.run_unet(unet, height=4, width=16)
    assert {record.block.level for record in records} == {1}


@pytest.mark.parametrize("merge_mlp", [False, True])
def test_blocks_that_are_matched_and_run_unmerged_leave_no_record(merge_mlp: bool) -> None:
    unet = apply_tome(tiny.unet(levels=1), 0.5, merge_mlp=merge_mlp)
    for block in find_blocks(unet):
        block.layer.attn1.processor = CrossAttnStoreProcessor()
    with record_merging(unet) as records, pytest.warns(UserWarning, match="keeps attention maps of all tokens"):
        tiny.run_unet(unet)
    assert len(records) == (4 if merge_mlp else 0)


def test_what_has_no_tome_is_refused() -> None:
    words = "ToMe is not applied to this UNet2DConditionModel, .*; call apply_tome first"
    for unet in (tiny.unet(), remove_tome(apply_tome(tiny.unet(), 0.5))):
        with pytest.raises(NothingToMergeError, match=words), record_merging(unet):
            pass

"""The contract that every model with ToMe keeps."""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import paddle
import ppdiffusers
import pytest
from paddle.nn import Layer

import tiny
from patching.helpers import count_alive, failing_in, refer_to_tensors, watch_blocks
from ppdiffusers_tome import apply_tome, get_tome, remove_tome
from ppdiffusers_tome.patching.attach import list_attached_blocks
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.call_stack import CALL_STACK
from ppdiffusers_tome.tools.recorder import record_merging
from zoo import Specimen
from zoo.specimen import keep_random_state

# Specimens of every commit: one of every adapter, and what most people have. `make test-all` takes all.
USUAL = {
    "added_kv", "cogvideox_rotary", "controlnet", "flux", "hunyuan_video", "latent_upscaler", "lvdm", "mochi", "sd3",
    "sd35", "sdxl", "unet", "unet_unconditional", "unidiffuser", "uvit", "vctrl", "wan", "wuerstchen_prior",
}  # fmt: skip


def marks_of(specimen: Specimen) -> list[pytest.MarkDecorator]:
    """Tests of unusual specimens are a sweep."""
    return [] if specimen.name in USUAL else [pytest.mark.sweep]


class ToMeContract:
    """The tests of a specimen, which subclasses give.

    ``plain`` is its output before anything was done. The tests share ``model``: each begins where the one before took
    ToMe off.
    """

    specimen: ClassVar[Specimen]

    def build(self) -> Layer:
        return self.specimen.build()

    @paddle.no_grad()
    def output(self, model: Layer, **given: Any) -> np.ndarray:
        with keep_random_state():  # some models draw noise of their own
            return self.specimen.run(model, **given).numpy()

    @pytest.fixture(scope="class")
    def models(self) -> tuple[Layer, Layer]:
        built = self.build()
        return built, copy.deepcopy(built)

    @pytest.fixture(scope="class")
    def plain(self, models: tuple[Layer, Layer]) -> np.ndarray:
        return self.output(models[0])

    @pytest.fixture
    def model(self, models: tuple[Layer, Layer], plain: np.ndarray) -> Iterator[Layer]:
        yield models[0]
        remove_tome(models[0]).eval()

    @pytest.fixture
    def other(self, models: tuple[Layer, Layer]) -> Iterator[Layer]:
        """A second one, for tests that compare."""
        yield models[1]
        remove_tome(models[1])

    def test_merging_changes_the_output(self, model: Layer, plain: np.ndarray) -> None:
        """Without this the rest would prove nothing."""
        merged = self.output(apply_tome(model, 0.5))
        assert np.isfinite(merged).all()
        assert np.abs(merged - plain).max() > 1e-3

    def test_levels_are_those_of_the_grids(self, model: Layer) -> None:
        """Levels are counted from the layers; grids come from the latent."""
        if self.specimen.pads_grid:
            pytest.skip("its grids are padded")
        levels = {block.path: block.level for block in find_blocks(model)}
        latents: list[tuple[int, ...]] = []

        def note(layer: Any, inputs: tuple) -> None:
            latents.extend(tuple(each.shape) for each in inputs[:1] if each.ndim >= 4)

        hook = model.register_forward_pre_hook(note)
        try:
            with record_merging(apply_tome(model, 0.25, max_downsample=8)) as records:
                self.output(model)
        finally:
            hook.remove()
        if not latents:
            pytest.skip("its latent is no image, or is given by keyword")
        assert records
        height, width = latents[0][-2:]
        assert {record.block.path: (record.grid.height, record.grid.width) for record in records} == {
            record.block.path: (-(-height // level), -(-width // level))
            for record in records for level in [levels[record.block.path]]
        }  # fmt: skip

    def test_ratio_zero_is_the_identity(self, model: Layer, plain: np.ndarray) -> None:
        apply_tome(model, 0, merge_crossattn=True, merge_mlp=True)
        assert np.array_equal(self.output(model), plain)

    def test_apply_twice_equals_applying_the_second(self, model: Layer, other: Layer) -> None:
        expected = self.output(apply_tome(other, 0.3, sx=4))
        apply_tome(model, 0.6, merge_mlp=True, seed=7)
        apply_tome(model, 0.3, sx=4)
        assert np.array_equal(self.output(model), expected)

    def test_remove_restores_output_exactly_and_leaves_nothing(self, model: Layer, plain: np.ndarray) -> None:
        before = tiny.snapshot(model)
        self.output(apply_tome(model, 0.5, merge_crossattn=True, merge_mlp=True))
        assert tiny.snapshot(model) != before
        for _ in range(2):  # the second finds nothing to remove
            assert tiny.snapshot(remove_tome(model)) == before
        assert np.array_equal(self.output(model), plain)

    def test_copies_have_their_own(self, model: Layer, plain: np.ndarray) -> None:
        merged = self.output(apply_tome(model, 0.5, merge_crossattn=True, merge_mlp=True))
        twin = copy.deepcopy(model)
        assert np.array_equal(self.output(remove_tome(copy.deepcopy(model))), plain)
        assert np.array_equal(self.output(model), merged)
        assert np.array_equal(self.output(remove_tome(model)), plain)
        assert np.array_equal(self.output(twin), merged)

    def test_classes_state_dict_keys_and_modes_stay(self, model: Layer) -> None:
        """Tools such as ``paddle.flops`` and quantization look a layer up by its exact class."""
        model.train()
        layers = model.sublayers(include_self=True)
        keys, classes = list(model.state_dict()), list(map(type, layers))
        apply_tome(model, 0.5, merge_crossattn=True, merge_mlp=True, cache=0.2)
        assert list(model.state_dict()) == keys
        assert list(map(type, model.sublayers(include_self=True))) == classes
        assert all(layer.training for layer in layers)

    def test_global_random_states_stay(self, model: Layer) -> None:
        self.output(model)  # whatever a first call sets up
        before = tiny.random_states()
        self.output(apply_tome(model, 0.5, seed=3))
        remove_tome(model)
        assert tiny.random_states() == before

    def test_the_seed_alone_makes_an_output_another(self, model: Layer) -> None:
        first = self.output(apply_tome(model, 0.5, seed=5))
        self.output(model, height=8, width=32, timestep=9)
        assert np.array_equal(self.output(model), first)
        assert np.abs(self.output(apply_tome(model, 0.5, seed=6)) - first).max() > 1e-4

    def test_other_shape_of_the_same_token_count_is_told_apart(self, model: Layer, other: Layer) -> None:
        """8x32 after 16x16, and the other way round, equal what a fresh model gives."""
        expected = self.output(apply_tome(other, 0.5), height=8, width=32)
        apply_tome(model, 0.5)
        square = self.output(model)
        assert np.array_equal(self.output(model, height=8, width=32), expected)
        assert np.array_equal(self.output(model), square)

    def test_a_call_that_failed_leaves_nothing(self, model: Layer, other: Layer) -> None:
        settings = dict(reuse_steps=2)
        expected = self.output(apply_tome(other, 0.5, **settings), timestep=300)
        _, last_block, _ = list_attached_blocks(apply_tome(model, 0.5, **settings))[-1]
        # Not caught by ``except Exception``.
        failure = failing_in(last_block, KeyboardInterrupt)
        with watch_blocks(model, refer_to_tensors) as references, failure, contextlib.suppress(KeyboardInterrupt):
            self.output(model)
        assert references
        assert not CALL_STACK.entries
        assert count_alive(references) == 0
        # No longer watched: Paddle computes a compiled model while merging is watched.
        assert np.array_equal(self.output(model, timestep=300), expected)

    def test_removal_frees_every_tensor(self, model: Layer) -> None:
        with watch_blocks(apply_tome(model, 0.5, tile=4, reuse_steps=2), refer_to_tensors) as references:
            for timestep in (500, 400):
                self.output(model, timestep=timestep)
        remove_tome(model)
        assert references
        assert count_alive(references) == 0

    def test_cache_over_steps_changes_skipped_steps_alone(self, model: Layer) -> None:
        plain = self.denoise(model)
        before = tiny.snapshot(model)
        apply_tome(model, ratio=0, cache=0.5)
        cached = self.denoise(model)
        computed = [step for step, (one, two) in enumerate(zip(plain, cached, strict=True)) if np.array_equal(one, two)]
        if self.specimen.scheduler is None:
            assert len(computed) == 9
        else:
            assert tuple(computed) == get_tome(model).entries[0].last_image.computed_steps
            assert len(computed) == 5
        assert np.isfinite(cached).all()
        assert tiny.snapshot(remove_tome(model)) == before

    def denoise(self, model: Layer) -> list[np.ndarray]:
        """Run a model at nine timesteps with the same latents."""
        if self.specimen.scheduler == "DDPMWuerstchenScheduler":  # of thousandths, and the finished image as its end
            scheduler, scale = ppdiffusers.DDPMWuerstchenScheduler(), 1000
        else:  # above 100: that of a score SDE is a hundredth of it, whose logarithm is taken as a whole number
            scheduler, scale = ppdiffusers.DDIMScheduler(steps_offset=100), 1
        pipe = tiny.Sampler(model, scheduler)
        return pipe(lambda unet, number, timestep: self.output(unet, timestep=timestep * scale), steps=9)[:9]


def contract_of(specimen: Specimen) -> type[ToMeContract]:
    """Return the tests of a specimen."""
    name = "Test" + specimen.name.title().replace("_", "")
    return type(name, (ToMeContract,), dict(specimen=specimen, pytestmark=marks_of(specimen)))

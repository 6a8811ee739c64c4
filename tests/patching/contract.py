"""The contract of every model with ToMe, to be inherited, and helpers of tests."""

import contextlib
import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import paddle
import ppdiffusers
import pytest

import tiny
from ppdiffusers_tome import apply_tome, get_tome, remove_tome
from ppdiffusers_tome.merging.matching import Matching
from ppdiffusers_tome.patching.attach import list_attached_blocks
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.call_stack import CALL_STACK
from ppdiffusers_tome.patching.layers import find_layer
from ppdiffusers_tome.patching.models import list_models
from ppdiffusers_tome.patching.slots import find_slot
from ppdiffusers_tome.patching.state import plan
from ppdiffusers_tome.patching.state.block_call import WATCHERS, BlockCall
from ppdiffusers_tome.tools.recorder import record_merging
from zoo import Specimen
from zoo.specimen import keep_random_state

# Specimens of every commit: one of every adapter, and what most people have. `make test-all` takes all.
USUAL = {
    "added_kv", "cogvideox_rotary", "controlnet", "flux", "hunyuan_video", "latent_upscaler", "lvdm", "mochi", "sd3",
    "sd35", "sdxl", "unet", "unet_unconditional", "unidiffuser", "uvit", "vctrl", "wan", "wuerstchen_prior",
}  # fmt: skip
# Where the layer that makes an attention's queries may be in a block.
QUERIES = ("attn1.to_q", "attn.to_q", "attention.to_q", "attn.qkv", "to_q")
# Its downsampler pads the height by a row more, which is cut off again on the way up.
PADDED = {"vid2vid_st_unet"}
# Their pipelines give them levels of noise, which are on no list of a scheduler.
OFF_LIST = {"latent_upscaler", "unet_score_sde"}

needs_recompute = pytest.mark.skipif(
    paddle.__version__.startswith("2."), reason="Paddle 2.6 has no recomputation on a CPU"
)


def marks_of(specimen: Specimen) -> list[pytest.MarkDecorator]:
    """Tests of unusual specimens are a sweep."""
    return [] if specimen.name in USUAL else [pytest.mark.sweep]


def groups(matching: Matching) -> list[np.ndarray]:
    """Token numbers of every row of the merged sequence, counted over the batch."""
    owner = matching.owner.numpy()
    return [np.flatnonzero(owner == row) for row in range(matching.batch * matching.num_left)]


class StumbledError(Exception):
    """The error that the tests raise."""


@contextlib.contextmanager
def failing_in(layer: tiny.Model, kind: type[BaseException] = StumbledError) -> Iterator[None]:
    def fail(*_: Any) -> None:
        raise kind

    hook = layer.register_forward_post_hook(fail)
    try:
        yield
    finally:
        hook.remove()


@contextlib.contextmanager
def first_arguments(layer: tiny.Model) -> Iterator[list[np.ndarray]]:
    """Yield a list that fills with the first arguments of a layer, merged already."""
    seen: list[np.ndarray] = []

    def compute(tokens: paddle.Tensor, *others: Any, **keywords: Any) -> Any:
        seen.append(tokens.numpy())
        return type(layer).forward(layer, tokens, *others, **keywords)

    slot = find_slot(layer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot, "inside", compute) if slot else patch.setitem(vars(layer), "forward", compute)
        yield seen


@contextlib.contextmanager
def count_queries(model_or_pipe: Any) -> Iterator[dict[str, list[int]]]:
    """Yield the queries of each attention call, by its block's path."""
    counts: dict[str, list[int]] = {}
    with contextlib.ExitStack() as stack:
        for part, model in list_models(model_or_pipe):
            for block in find_blocks(model):
                layers = (find_layer(block.layer, path) for path in QUERIES)
                queries = next((layer for layer in layers if layer is not None), None)
                if queries is None:
                    continue  # a block of the latent upscaler that has cross-attention alone
                seen = counts.setdefault(f"{part}.{block.path}", [])
                hook = queries.register_forward_post_hook(lambda _, x, output, seen=seen: seen.append(output.shape[1]))
                stack.callback(hook.remove)
        yield counts


def watch(model: tiny.Model, note: Callable[[BlockCall], None]) -> None:
    """Have the calls of a model's blocks noted in which tokens merge."""
    layers = {id(layer) for layer in model.sublayers(include_self=True)}
    WATCHERS.append(lambda block: note(block) if id(block.layer) in layers else None)


def watch_blocks(model: tiny.Model) -> list[BlockCall]:
    """Return a list that fills with the calls of blocks in which tokens merge."""
    called: list[BlockCall] = []
    watch(model, called.append)
    return called


class EverySecond(paddle.nn.Layer):
    """A cache such as Pyramid Attention Broadcast's on a layer.

    Every second call gets what the one before got, the very object.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.fn_ref = SimpleNamespace(original_forward=forward, forward=forward)
        self.calls, self.state = 0, SimpleNamespace(cache=None)

    @classmethod
    def put_on(cls, layer: tiny.Model) -> None:
        cache = cls(layer.forward)
        layer.forward = cache.forward
        layer._diffusers_hook = SimpleNamespace(hooks={"every second": cache}, _fn_refs=[cache.fn_ref])

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        self.calls += 1
        if self.calls % 2:
            self.state.cache = self.fn_ref.original_forward(*inputs, **keywords)
        return self.state.cache


@contextlib.contextmanager
def count_matchings(layer: tiny.Model) -> Iterator[list[int]]:
    """Yield the number of matchings that are made in each call of a layer."""
    counts: list[int] = []
    match = plan.match_tokens

    def count(*args: Any, **given: Any) -> Any:
        counts[-1] += 1
        return match(*args, **given)

    hook = layer.register_forward_pre_hook(lambda *_: counts.append(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "match_tokens", count)
        yield counts
    hook.remove()


class Tensors:
    """Weak references to every tensor that merging made or got."""

    def __init__(self, model: tiny.Model) -> None:
        self.seen: list[weakref.ref] = []
        watch(model, self.note)

    def note(self, block: BlockCall) -> None:
        matching = block.reduction
        self.seen += [weakref.ref(block), weakref.ref(block.call), weakref.ref(matching)]
        self.seen += [weakref.ref(each) for each in vars(matching).values() if isinstance(each, paddle.Tensor)]

    def alive(self) -> int:
        gc.collect()
        return sum(each() is not None for each in self.seen)


class ToMeContract:
    """Subclasses give ``build`` and ``run``; ``plain`` is what comes before anything was done.

    The tests share ``model``: each begins where the one before took ToMe off.
    """

    build: ClassVar[Any]
    run: ClassVar[Any]
    name: ClassVar[str] = ""  # of a specimen

    @pytest.fixture(scope="class")
    def models(self) -> tuple[tiny.Model, tiny.Model]:
        built = type(self).build()
        return built, copy.deepcopy(built)

    @pytest.fixture(scope="class")
    def plain(self, models: tuple[tiny.Model, tiny.Model]) -> np.ndarray:
        return type(self).run(models[0])

    @pytest.fixture
    def model(self, models: tuple[tiny.Model, tiny.Model], plain: np.ndarray) -> Iterator[tiny.Model]:
        yield models[0]
        remove_tome(models[0]).eval()

    @pytest.fixture
    def other(self, models: tuple[tiny.Model, tiny.Model]) -> Iterator[tiny.Model]:
        """A second one, for tests that compare."""
        yield models[1]
        remove_tome(models[1])

    def output(self, model: tiny.Model, **given: Any) -> np.ndarray:
        return type(self).run(model, **given)

    def test_merging_changes_the_output(self, model: tiny.Model, plain: np.ndarray) -> None:
        """Without this the rest would prove nothing."""
        merged = self.output(apply_tome(model, 0.5))
        assert np.isfinite(merged).all()
        assert np.abs(merged - plain).max() > 1e-3

    def test_levels_are_those_of_the_grids(self, model: tiny.Model) -> None:
        """Levels are counted from the layers; grids come from the latent."""
        if self.name in PADDED:
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

    def test_ratio_zero_is_the_identity(self, model: tiny.Model, plain: np.ndarray) -> None:
        apply_tome(model, 0, merge_crossattn=True, merge_mlp=True)
        assert np.array_equal(self.output(model), plain)

    def test_apply_twice_equals_applying_the_second(self, model: tiny.Model, other: tiny.Model) -> None:
        expected = self.output(apply_tome(other, 0.3, sx=4))
        apply_tome(model, 0.6, merge_mlp=True, seed=7)
        apply_tome(model, 0.3, sx=4)
        assert np.array_equal(self.output(model), expected)

    def test_remove_restores_output_exactly_and_leaves_nothing(self, model: tiny.Model, plain: np.ndarray) -> None:
        before = tiny.snapshot(model)
        self.output(apply_tome(model, 0.5, merge_crossattn=True, merge_mlp=True))
        assert tiny.snapshot(model) != before
        for _ in range(2):  # the second finds nothing to remove
            assert tiny.snapshot(remove_tome(model)) == before
        assert np.array_equal(self.output(model), plain)

    def test_copies_have_their_own(self, model: tiny.Model, plain: np.ndarray) -> None:
        merged = self.output(apply_tome(model, 0.5, merge_crossattn=True, merge_mlp=True))
        twin = copy.deepcopy(model)
        assert np.array_equal(self.output(remove_tome(copy.deepcopy(model))), plain)
        assert np.array_equal(self.output(model), merged)
        assert np.array_equal(self.output(remove_tome(model)), plain)
        assert np.array_equal(self.output(twin), merged)

    def test_classes_state_dict_keys_and_modes_stay(self, model: tiny.Model) -> None:
        """Tools such as ``paddle.flops`` and quantization look a layer up by its exact class."""
        model.train()
        layers = model.sublayers(include_self=True)
        keys, classes = list(model.state_dict()), list(map(type, layers))
        apply_tome(model, 0.5, merge_crossattn=True, merge_mlp=True, cache=0.2)
        assert list(model.state_dict()) == keys
        assert list(map(type, model.sublayers(include_self=True))) == classes
        assert all(layer.training for layer in layers)

    def test_global_random_states_stay(self, model: tiny.Model) -> None:
        self.output(model)  # whatever a first call sets up
        before = tiny.random_states()
        self.output(apply_tome(model, 0.5, seed=3))
        remove_tome(model)
        assert tiny.random_states() == before

    def test_the_seed_alone_makes_an_output_another(self, model: tiny.Model) -> None:
        first = self.output(apply_tome(model, 0.5, seed=5))
        self.output(model, height=8, width=32, timestep=9)
        assert np.array_equal(self.output(model), first)
        assert np.abs(self.output(apply_tome(model, 0.5, seed=6)) - first).max() > 1e-4

    def test_other_shape_of_the_same_token_count_is_told_apart(self, model: tiny.Model, other: tiny.Model) -> None:
        """8x32 after 16x16, and the other way round, equal what a fresh model gives."""
        expected = self.output(apply_tome(other, 0.5), height=8, width=32)
        apply_tome(model, 0.5)
        square = self.output(model)
        assert np.array_equal(self.output(model, height=8, width=32), expected)
        assert np.array_equal(self.output(model), square)

    def test_a_call_that_failed_leaves_nothing(self, model: tiny.Model, other: tiny.Model) -> None:
        settings = dict(reuse_steps=2)
        expected = self.output(apply_tome(other, 0.5, **settings), timestep=300)
        tensors = Tensors(apply_tome(model, 0.5, **settings))
        last_block = list_attached_blocks(model)[-1][1]
        # Not caught by ``except Exception``.
        with failing_in(last_block, KeyboardInterrupt), contextlib.suppress(KeyboardInterrupt):
            self.output(model)
        assert tensors.seen
        assert not CALL_STACK.frames
        assert tensors.alive() == 0
        WATCHERS.clear()  # a compiled model is computed by Paddle while merging is watched
        assert np.array_equal(self.output(model, timestep=300), expected)

    def test_removal_frees_every_tensor(self, model: tiny.Model) -> None:
        tensors = Tensors(apply_tome(model, 0.5, tile=4, reuse_steps=2))
        for timestep in (500, 400):
            self.output(model, timestep=timestep)
        remove_tome(model)
        assert tensors.seen
        assert tensors.alive() == 0

    def test_cache_over_steps_changes_skipped_steps_alone(self, model: tiny.Model) -> None:
        plain = self.denoise(model)
        before = tiny.snapshot(model)
        apply_tome(model, ratio=0, cache=0.5)
        cached = self.denoise(model)
        computed = [step for step, (one, two) in enumerate(zip(plain, cached, strict=True)) if np.array_equal(one, two)]
        if self.name in OFF_LIST:
            assert len(computed) == 9
        else:
            assert tuple(computed) == get_tome(model).entries[0].last_image.computed_steps
            assert len(computed) == 5
        assert np.isfinite(cached).all()
        assert tiny.snapshot(remove_tome(model)) == before

    def denoise(self, model: tiny.Model) -> list[np.ndarray]:
        """Run a model at nine timesteps with the same latents."""
        # Above 100: that of a score SDE is a hundredth of it, whose logarithm is taken as a whole number. Würstchen's
        # list has thousandths, and the finished image as its end.
        is_ratio = self.name.startswith("wuerstchen")
        scheduler = ppdiffusers.DDPMWuerstchenScheduler() if is_ratio else ppdiffusers.DDIMScheduler(steps_offset=100)
        scale = 1000 if is_ratio else 1
        pipe = tiny.Sampler(model, scheduler)
        return pipe(lambda unet, number, timestep: self.output(unet, timestep=timestep * scale), steps=9)[:9]


def contract_of(specimen: Specimen) -> type[ToMeContract]:
    """Return the tests of a specimen."""

    @paddle.no_grad()
    def run(model: tiny.Model, **given: Any) -> np.ndarray:
        with keep_random_state():  # some models draw noise of their own
            return specimen.run(model, **given).numpy()

    given = dict(build=staticmethod(specimen.build), run=staticmethod(run), name=specimen.name)
    name = "Test" + specimen.name.title().replace("_", "")
    return type(name, (ToMeContract,), {**given, "pytestmark": marks_of(specimen)})

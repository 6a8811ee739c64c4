"""Reuse of matchings over steps: what is shared, and that nothing is shared that must not be."""

import copy
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest
from paddle.nn import Layer

import tiny
from patching.helpers import count_matchings
from ppdiffusers_tome import ToMeConfig, apply_tome
from ppdiffusers_tome.patching.state import plan
from ppdiffusers_tome.patching.state.denoiser_state import DenoiserState
from ppdiffusers_tome.patching.state.pipeline_call import Denoising
from ppdiffusers_tome.patching.state.shared_values import CallIdentity

SETTINGS = dict(ratio=0.5, max_downsample=2)
# Two levels: three blocks on 16x16 and three on 8x8, and the middle one there.
BLOCKS, GRIDS = 7, 2
FALLING = (900, 800, 700, 600, 500, 400, 300)


def denoise(unet: Layer, call: Callable[..., Any] = tiny.run_unet, steps: int = len(FALLING)) -> list[Any]:
    """Call a UNet in a pipeline, at every timestep of its scheduler."""
    pipe = tiny.Sampler(unet, tiny.scheduler())
    return pipe(lambda unet, number, timestep: call(unet, timestep=timestep), steps=steps)


def encode(text: str) -> paddle.Tensor:
    return paddle.to_tensor([*text.encode()], dtype="float32")


class Calls:
    """The calls of a denoiser in its pipeline, and what they share."""

    def __init__(self, steps: int, timesteps: Sequence[float] = FALLING) -> None:
        pipe = SimpleNamespace(scheduler=SimpleNamespace(timesteps=timesteps, set_timesteps=None))
        self.denoising = Denoising(pipe, "", DenoiserState(ToMeConfig(reuse_steps=steps)))

    def lookup(self, timestep: float, text: str = "a cat") -> dict:
        return self.share(timestep, [encode(text)])

    def share(self, timestep: float, conditioning: list[paddle.Tensor], rows: int = 1) -> dict:
        step = self.denoising.enter_step(timestep)
        return self.denoising.share_values(step, CallIdentity((rows, 4, 8, 8), conditioning)).reductions


@pytest.mark.parametrize(
    ("steps", "timesteps", "fresh"),
    [
        (3, FALLING, [0, 3, 6]), (1, FALLING[:3], [0, 1, 2]), (10, FALLING, [0]),
        # Another run: at a step before, one behind the next, and from the beginning.
        *((10, [900, 800, 700, other], [0, 3]) for other in (800, 500, 900)),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_steps_that_share_are_places_in_the_list(steps: int, timesteps: Sequence[float], fresh: list[int]) -> None:
    calls, indices = Calls(steps), []
    for index, timestep in enumerate(timesteps):
        kept = calls.lookup(timestep)
        if not kept:
            indices.append(index)
        kept[index] = True
    assert indices == fresh


class TestCallsOfAStep:
    """A step may call a denoiser several times. Each call finds its own, or none."""

    @pytest.mark.parametrize(
        ("steps", "found"),
        [
            # By the letter of its text: prompted and unprompted, in any order, of which one may stop; and others.
            (("pu", "pu", "upx"), [{"u": 1}, {"p": 1}, {}]), (("pu", "pu", "p"), [{"p": 1}]),
            (("pu", "pu", "u"), [{"u": 1}]), (("p", "p", "x"), [{}]),
            # Two images that nothing tells apart, in turns; then one of them alone, which is fresh once more.
            (("pp", "pp", "pp"), [{}, {}]), (("pp", "pp", "pp", "p"), [{}]),
        ],
    )  # fmt: skip
    def test_each_finds_its_own_or_nothing(self, steps: tuple[str, ...], found: list[dict]) -> None:
        calls, (*before, last) = Calls(10), steps
        for number, texts in enumerate(before):
            for text in texts:
                calls.lookup(FALLING[number], text)[text] = number
        assert [calls.lookup(FALLING[len(before)], text) for text in last] == found

    def test_a_view_of_text_that_changed_in_place_is_another(self) -> None:
        texts, calls = paddle.ones([2, 3, 4]), Calls(10)
        calls.share(900, [texts[1:]])["matching"] = 1
        texts.multiply_(paddle.to_tensor(0.3))
        assert not calls.share(800, [texts[1:]])

    def test_a_text_that_is_made_anew_in_every_step_is_the_same(self) -> None:
        """As some pipelines do: other objects, equal values; or none. Latents of another shape are another's."""
        calls = Calls(10)
        calls.share(900, [encode("a cat")])["made"] = True
        calls.share(900, [])["made without"] = True
        assert calls.share(800, [encode("a cat")], rows=2) == {}
        assert calls.share(800, [encode("a cat"), encode("and more")]) == {}
        assert calls.share(800, [encode("a cat")]) == {"made": True}
        assert calls.share(800, []) == {"made without": True}


class TestSteps:
    def test_steps_share_and_fresh_ones_are_as_without_reuse(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A step that takes matchings over makes no partition either."""
        plain = denoise(apply_tome(tiny.unet(), **SETTINGS))
        partitions, random_partition = [], plan.random_partition
        monkeypatch.setattr(
            plan, "random_partition", lambda *args, **given: partitions.append(1) or random_partition(*args, **given)
        )
        unet = apply_tome(tiny.unet(), reuse_steps=3, **SETTINGS)
        with count_matchings(unet) as counts:
            kept = denoise(unet)
        assert counts == [BLOCKS, 0, 0, BLOCKS, 0, 0, BLOCKS]
        assert len(partitions) == 3 * GRIDS
        assert list(map(np.array_equal, plain, kept)) == [True, False, False, True, False, False, True]

    @pytest.mark.parametrize("other", [dict(height=8, width=32), dict(height=32), dict(batch=3), dict(batch=1)])
    def test_other_shape_in_the_middle_is_fresh_and_right(self, other: dict) -> None:
        steps = iter(range(len(FALLING)))

        def change(unet: Layer, timestep: float) -> np.ndarray:
            return tiny.run_unet(unet, timestep=timestep, **(other if next(steps) == 3 else {}))

        outputs = denoise(apply_tome(tiny.unet(), reuse_steps=10, **SETTINGS), change)
        steps = iter(range(len(FALLING)))
        expected = denoise(apply_tome(tiny.unet(), **SETTINGS), change)
        assert np.array_equal(outputs[3], expected[3])
        assert not np.array_equal(outputs[2], expected[2])

    def test_prompted_and_unprompted_in_two_calls_equal_one_batch(self) -> None:
        one, two = (apply_tome(tiny.unet(), reuse_steps=4, **SETTINGS) for _ in range(2))
        latent, text = tiny.latent(2), tiny.text(2)
        texts = [text[i : i + 1] for i in range(2)]

        def run_batch(unet: Layer, timestep: float) -> np.ndarray:
            return unet(latent * (timestep / 900), timestep, text).sample.numpy()

        def run_halves(unet: Layer, timestep: float) -> np.ndarray:
            moved = latent * (timestep / 900)
            halves = [unet(moved[i : i + 1], timestep, texts[i]).sample.numpy() for i in range(2)]
            return np.concatenate(halves)

        for batch, both in zip(denoise(one, run_batch), denoise(two, run_halves), strict=True):
            assert np.abs(batch - both).max() <= 1e-5

    def test_calls_with_gradients_and_without_a_pipeline_are_always_fresh(self) -> None:
        unet = apply_tome(tiny.unet(), reuse_steps=4, **SETTINGS)

        def run(unet: Layer, timestep: float) -> paddle.Tensor:
            with paddle.enable_grad():
                return unet(tiny.latent(), timestep, tiny.text()).sample

        with count_matchings(unet) as counts:
            denoise(unet, run)
            with pytest.warns(UserWarning, match="known only in a call of a pipeline, .* reuse_steps have no effect"):
                tiny.run_unet(unet, timestep=FALLING[0])
            for timestep in FALLING[1:]:
                tiny.run_unet(unet, timestep=timestep)
        assert counts == [BLOCKS] * 2 * len(FALLING)

    def test_a_copy_starts_afresh(self) -> None:
        copies: list[Layer] = []

        def run(unet: Layer, timestep: float) -> np.ndarray:
            copies.append(copy.deepcopy(unet))
            return tiny.run_unet(unet, timestep=timestep)

        unet = apply_tome(tiny.unet(), reuse_steps=10, **SETTINGS)
        denoise(unet, run, steps=3)
        with count_matchings(copies[2]) as counts:
            tiny.run_unet(copies[2])
        assert counts == [BLOCKS]


@pytest.mark.parametrize("scheduler", ["DDIM", "PNDM", "HeunDiscrete", "EulerDiscrete"])
def test_called_again_gives_the_same_image(scheduler: str) -> None:
    pipe = tiny.pipeline(scheduler=getattr(ppdiffusers, f"{scheduler}Scheduler")())
    pipe.apply_tome(0.5, reuse_steps=3)
    first, second = (tiny.run_pipeline(pipe, steps=6) for _ in range(2))
    assert np.isfinite(first).all()
    assert np.array_equal(first, second)
    assert not np.array_equal(tiny.run_pipeline(pipe.apply_tome(0.5), steps=6), first)

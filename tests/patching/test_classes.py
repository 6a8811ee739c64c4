"""Classes of layers with ToMe: those derived from them, given later, or that define what ToMe's class does, too."""

from __future__ import annotations

import copy
import functools
import threading
from typing import Any
from unittest import mock

import numpy as np
import paddle
import ppdiffusers
import pytest

import tiny
from ppdiffusers_tome import apply_tome, remove_tome
from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.layer_class import list_overrides
from ppdiffusers_tome.patching.recorder import record_merging

UNet: Any = ppdiffusers.UNet2DConditionModel


def build(cls: Any) -> Any:
    config = {name: value for name, value in tiny.unet(levels=1).config.items() if not name.startswith("_")}
    return tiny.build(cls, **config)


@pytest.fixture
def merged() -> np.ndarray:
    return tiny.run_unet(apply_tome(tiny.unet(levels=1), 0.5))


def test_what_is_set_on_a_derived_class_stays_there(merged: np.ndarray) -> None:
    """As by ``mock.patch``, or a class that counts its calls."""
    unet, own = apply_tome(tiny.unet(levels=1), 0.5), vars(UNet)["forward"]

    class Counting(type(unet)):  # type: ignore[misc]
        count = 0

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            type(self).count += 1
            return super().forward(*args, **kwargs)

    unet.__class__, forward = Counting, Counting.forward
    assert np.array_equal(tiny.run_unet(unet), merged)
    assert (Counting.count, hasattr(UNet, "count")) == (1, False)
    with mock.patch.object(Counting, "forward"):
        assert vars(UNet)["forward"] is own
    assert (Counting.forward, vars(UNet)["forward"]) == (forward, own)
    del Counting.forward
    assert Counting.forward is own


def test_a_derived_class_without_it_is_copied_as_it_is() -> None:
    class Own(type(apply_tome(tiny.unet(levels=1), 0.5))):  # type: ignore[misc]
        pass

    unet = build(Own)
    assert type(copy.deepcopy(unet)) is Own
    assert unet.tome is None


def test_a_derived_class_with_it_is_copied_as_it_is(merged: np.ndarray) -> None:
    unet = apply_tome(tiny.unet(levels=1), 0.5)

    class Own(type(unet)):  # type: ignore[misc]
        pass

    unet.__class__ = Own
    again = copy.deepcopy(apply_tome(unet, 0.5))
    assert np.array_equal(tiny.run_unet(again), merged)
    assert type(remove_tome(again)) is Own


def test_a_class_that_is_copied_by_its_arguments(merged: np.ndarray) -> None:
    """Its own ``__reduce__`` gives no state."""

    class Own(UNet):
        def __reduce__(self) -> tuple[Any, ...]:
            return build, (UNet,)

    again = copy.deepcopy(apply_tome(build(Own), 0.5))
    assert np.array_equal(tiny.run_unet(again), merged)


def test_a_class_that_drops_what_cannot_be_copied(merged: np.ndarray) -> None:
    class Locked(UNet):
        def __getstate__(self) -> dict[str, Any]:
            return {name: value for name, value in vars(self).items() if name != "lock"}

    unet = apply_tome(build(Locked), 0.5)
    vars(unet)["lock"] = threading.Lock()
    again = copy.deepcopy(unet)
    assert "lock" not in vars(again)
    assert np.array_equal(tiny.run_unet(again), merged)


def test_a_class_that_is_given_later_is_counted() -> None:
    unet = apply_tome(tiny.unet(levels=1), 0.5)
    block: Any = next(iter(find_blocks(unet))).block
    block.__class__ = type("Timed", (type(block),), {})
    with record_merging(unet) as records:
        tiny.run_unet(unet)
    assert len({record.block.path for record in records}) == unet.tome.num_blocks == len(list(find_blocks(unet)))
    assert list_overrides(remove_tome(block)) == []


@pytest.mark.parametrize("settings", [dict(ratio=0.5, cache=0.3), dict(ratio=0, cache=0.3)])
def test_a_forward_that_hands_on_all_its_arguments(settings: dict[str, Any]) -> None:
    class Own(UNet):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    images, reports = [], []
    for cls in (UNet, Own):
        pipe = apply_tome(tiny.pipeline(unet=build(cls)), **settings)
        images.append(tiny.run_pipeline(pipe, steps=12))
        reports.append(pipe.tome.entries[0].last_image)
    assert np.array_equal(*images)
    assert reports[0] == reports[1]
    assert reports[0].num_skipped > 0


def test_a_forward_that_is_made_anew_at_each_access() -> None:
    class Own(UNet):
        def _run(self, flag: bool, sample: Any, timestep: Any, encoder_hidden_states: Any, **kwargs: Any) -> Any:
            assert flag
            return UNet.forward(self, sample, timestep, encoder_hidden_states, **kwargs)

        forward = functools.partialmethod(_run, True)

    pipe = apply_tome(tiny.pipeline(unet=build(Own)), 0.5, cache=0.3)
    tiny.run_pipeline(pipe, steps=12)
    assert pipe.tome.entries[0].last_image.num_skipped > 0


def test_a_method_that_was_found_before_it_was_removed_runs_the_plain_model() -> None:
    unet, plain = tiny.unet(levels=1), tiny.run_unet(tiny.unet(levels=1))
    forward = apply_tome(unet, 0.5).forward
    remove_tome(unet)
    with paddle.no_grad():
        assert np.array_equal(forward(tiny.latent(), 500, tiny.text()).sample.numpy(), plain)


def test_in_a_container_which_is_never_called_each_layer_has_it() -> None:
    unet, expected = tiny.unet(), tiny.unet()
    for block in expected.down_blocks:
        apply_tome(block, 0.5, max_downsample=8, use_rand=False)
    apply_tome(unet.down_blocks, 0.5, max_downsample=8, use_rand=False)
    assert unet.tome.blocks == expected.tome.blocks
    assert np.array_equal(tiny.run_unet(unet), tiny.run_unet(expected))
    assert not np.array_equal(tiny.run_unet(unet), tiny.run_unet(tiny.unet()))

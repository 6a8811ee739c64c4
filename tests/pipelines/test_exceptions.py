"""An exception in any layer, at any step, and what comes after: the image is right, or there is none."""

import contextlib
from collections import Counter
from typing import Any

import numpy as np
import pytest

import tiny
from patching.helpers import StumbledError
from pipelines.image_numbers import SETTINGS, draw
from ppdiffusers_tome.patching.call_stack import CALL_STACK
from ppdiffusers_tome.patching.state import plan

STEPS = 2
# Of all layers and steps, every how many fail: primes, so that they fall in with no pattern of the layers.
EVERY = {"usual": 29, "reuse": 17, "tiles and schedule": 17, "todo": 17, "keys": 17}


class Fuse:
    """Blows in the ``step``-th call of a layer."""

    def __init__(self, step: int) -> None:
        self.left = step

    def __call__(self, *_: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise StumbledError


def calls_of_layers(pipe: Any) -> Counter[str]:
    calls: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        for path, layer in pipe.unet.named_sublayers(include_self=True):
            listener = layer.register_forward_pre_hook(lambda *_, path=path: calls.update([path]))
            stack.callback(listener.remove)
        draw(pipe, 0, num_inference_steps=STEPS)
    return calls


@pytest.mark.parametrize("name", SETTINGS)
def test_any_layer_may_fail_at_any_step(name: str) -> None:
    pipe = tiny.pipeline()
    plain, before = draw(pipe, 0), tiny.snapshot(pipe.unet)
    pipe.apply_tome(**SETTINGS[name])
    # Another size than the failing image's, with as many tokens, and then the same.
    expected = [draw(pipe, number, num_inference_steps=STEPS) for number in (1, 0)]
    layers = dict(pipe.unet.named_sublayers(include_self=True))
    places = [(path, call) for path, calls in calls_of_layers(pipe).items() for call in range(calls)]
    assert len(places) > 500
    for number, (path, call) in enumerate(places[:: EVERY[name]]):
        fuse = layers[path].register_forward_pre_hook(Fuse(call))
        with pytest.raises(StumbledError):
            draw(pipe, 0, num_inference_steps=STEPS)
        fuse.remove()
        assert not CALL_STACK.entries
        after = number % 2
        assert np.array_equal(draw(pipe, 1 - after, num_inference_steps=STEPS), expected[after]), (path, call)
    pipe.remove_tome()
    assert tiny.snapshot(pipe.unet) == before
    assert np.array_equal(draw(pipe, 0), plain)


def test_failing_between_two_steps_or_while_matching_leaves_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tiny.pipeline().apply_tome(**SETTINGS["reuse"])
    expected = draw(pipe, 0)
    with pytest.raises(StumbledError):
        draw(pipe, 0, callback_on_step_end=Fuse(0))
    with monkeypatch.context() as patch:
        patch.setattr(plan, "match_tokens", Fuse(0))
        with pytest.raises(StumbledError):
            draw(pipe, 0)
    assert not CALL_STACK.entries
    assert CALL_STACK.pipeline_call is None
    assert np.array_equal(draw(pipe, 0), expected)

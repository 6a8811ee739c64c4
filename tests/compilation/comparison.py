"""Helpers of tests: compiled models are compared with the same ones without."""

import contextlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import paddle
import pytest
from ppdiffusers.models import embeddings

import tiny

BY_PADDLE = "computed by Paddle, not by a compiled program"
# Of whole modules, as no program is made without them.
needs_openvino = [
    pytest.mark.skipif(paddle.__version__.startswith("2."), reason="needs Paddle 3"),
    pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="needs openvino"),
]


@contextlib.contextmanager
def programs_alone() -> Iterator[None]:
    """Fail where a model's call does not become a program."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f"(?s).*{BY_PADDLE}")
        yield


def difference(found: Any, expected: Any) -> float:
    """Root mean square of the difference over that of what is expected."""
    found, expected = (np.asarray(each, np.float64) for each in (found, expected))
    assert found.shape == expected.shape
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def check_same(model: Any, plain: Any, run: Callable[..., Any] = tiny.run_unet, **given: Any) -> np.ndarray:
    """Check that a program computes what Paddle does; return its result."""
    with programs_alone():
        found = run(model, **given)
    assert difference(found, run(plain, **given)) <= 1e-4
    return found


def check_by_paddle(model: Any, plain: Any, reason: str, run: Callable[..., Any] = tiny.run_unet, **given: Any) -> None:
    """Paddle computes each call, as a line says once; nothing differs."""
    with pytest.warns(UserWarning, match=rf"(?s){BY_PADDLE}.*{reason}"):
        found = run(model, **given)
    assert difference(found, run(plain, **given)) <= 1e-6
    with programs_alone():  # nothing is said again
        assert difference(run(model, **given), run(plain, **given)) <= 1e-6


class Counted:
    """The calls of UNets and ControlNets that Paddle computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        embed = embeddings.get_timestep_embedding  # once in a call; a method would be code that is not known

        def count(*args: Any, **kwargs: Any) -> Any:
            self.calls += paddle.in_dynamic_mode()
            return embed(*args, **kwargs)

        monkeypatch.setattr(embeddings, "get_timestep_embedding", count)

    def during(self, run: Callable[[], Any]) -> int:
        before = self.calls
        run()
        return self.calls - before

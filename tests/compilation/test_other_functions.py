"""Functions and hooks of users on compiled models with ToMe: the tests without compiling, run again."""

import contextlib
from typing import Any

import pytest

from compilation.comparison import difference, needs_openvino
from patching import test_other_functions
from patching.test_other_functions import *  # noqa: F403
from ppdiffusers_tome import ToMeValueError, apply_tome, compile_cpu, remove_tome, uncompile_cpu
from ppdiffusers_tome.compilation.comparison import BOUNDS

pytestmark = [*needs_openvino, pytest.mark.sweep]


def _apply_and_compile(model: Any, *args: Any, **given: Any) -> Any:
    with contextlib.suppress(ToMeValueError):  # refused where a function stands in place of the model's forward
        compile_cpu(model, "float32")
    return apply_tome(model, *args, **given)


@pytest.fixture(autouse=True)
def compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile what gets ToMe; results of Paddle and of a program are equal to rounding."""
    monkeypatch.setattr(test_other_functions, "apply_tome", _apply_and_compile)
    monkeypatch.setattr(test_other_functions, "remove_tome", lambda model: uncompile_cpu(remove_tome(model)))
    monkeypatch.setattr(test_other_functions, "is_same", lambda one, two: difference(one, two) <= BOUNDS["float32"])

"""For all tests: what makes them quicker, and the same every time."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from ppdiffusers_tome.cpu import let_mkl_use_avx2

# Before the first product, as the program does: images that a test draws in its own process and those of programs
# that it starts are compared byte by byte.
let_mkl_use_avx2()
# Last, as their modules have common names: what the small models were trained on and what judges their images, and
# the page.
sys.path += [str(Path(__file__).parents[1] / "examples" / folder) for folder in ("train_demo_models", "play")]
# Of properties: the same examples on every machine, and no file of those that failed.
settings.register_profile(
    "tests", max_examples=120, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)  # fmt: skip
settings.load_profile("tests")


def pytest_collection_finish() -> None:
    # Paddle's and ppdiffusers' modules, 300,000 objects, stay out of every later garbage collection.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _turn_gradients_on() -> None:
    """Turn gradients on, which nested ``no_grad`` of Paddle 2.6 leaves off."""
    paddle = sys.modules.get("paddle")
    tracer = None if paddle is None else paddle.framework._dygraph_tracer()
    if tracer is not None and not tracer._has_grad:
        tracer._has_grad = True


@pytest.fixture(autouse=True)
def _forget_refused_programs() -> Iterator[None]:
    """Forget what Paddle 3 keeps of a program whose tracing raised.

    It keeps parameters by the address of their program, and crashes where a later program gets the same address.
    """
    yield
    recorder = sys.modules.get("paddle.jit.dy2static.parameter_recorder")
    if recorder is not None:
        recorder._global_parameter_recorder.__init__()
        recorder._global_inplace_map.__init__()

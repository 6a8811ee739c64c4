"""The state of a denoiser with ToMe: settings, constants, warnings."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import paddle

from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.patching.state.call_stack import CALL_STACK, CHANGES, Frame
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall
from ppdiffusers_tome.patching.state.denoising import Denoising
from ppdiffusers_tome.patching.state.progress import TimestepTracker
from ppdiffusers_tome.patching.state.recompute import is_awaited
from ppdiffusers_tome.patching.step_cache import StepReport
from ppdiffusers_tome.settings.config import ToMeConfig

# A warning names the first line outside of these files: the user's. Paddle 2.6 wraps functions with ``decorator``.
_SPECS = map(find_spec, ("ppdiffusers_tome", "paddle", "ppdiffusers", "paddlenlp", "decorator"))
_LIBRARIES = (contextlib.__file__, *(
    f"{Path(spec.origin).parent}{os.sep}" if spec.submodule_search_locations else spec.origin  # a folder, or one file
    for spec in _SPECS if spec and spec.origin
))  # fmt: skip


class DenoiserState:
    """The state that all overrides of a denoiser share; copies keep settings.

    Attributes:
        config: the settings.
        max_timestep: the timestep of pure noise in the model, 1000 in nearly all; see ``TimestepTracker``.
        constants: of the denoiser's partitions, freed with this.
        last_image: the steps of the last image with a cache over steps.
        has_run_blocks: True once any block ran in which tokens may merge.
        record: called with the step, key and value of each layer that the cache over steps stores; None except in
            tuning.
        last_graph_call: with Paddle 2.6, the last call that recorded gradients, see ``recompute``; else None.
    """

    def __init__(self, config: ToMeConfig, max_timestep: float = 1000) -> None:
        self.config, self.max_timestep = config, max_timestep
        self.constants = Constants()
        self.last_image: StepReport | None = None
        self.record: Callable[[int, Hashable, Any], None] | None = None
        self.has_run_blocks = False
        self.last_graph_call: DenoiserCall | None = None
        self._warned: set[str] = set()
        # The steps of a denoiser without a pipeline, by thread.
        self._without_pipeline = threading.local()
        self._running: set[DenoiserCall] = set()  # in any thread

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config, "max_timestep": self.max_timestep}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @contextmanager
    def run_call(self, call: DenoiserCall) -> Iterator[None]:
        """Make a call the innermost one of this thread until it ends."""
        try:
            with CHANGES:
                self._running.add(call)
            with CALL_STACK.push(Frame(call)):
                yield
        except BaseException:
            vars(self._without_pipeline).clear()  # the next call begins a new denoising
            raise
        finally:
            self._running.discard(call)

    def find_frame(self) -> Frame | None:
        """Return the innermost calls that run now, a backward pass included."""
        for frame in reversed(CALL_STACK.frames):
            if frame.call.state is self:
                return frame
        if self.last_graph_call is None or not (paddle.in_dynamic_mode() and paddle.is_grad_enabled()):
            return None
        return Frame(self.last_graph_call)

    def find_use(self, *, awaits_backward: bool) -> str:
        """Return what needs the overrides, a clause or "", under ``CHANGES``; see ``require_unused``."""
        if self._running:
            return "while a call of the denoiser runs"
        if awaits_backward and is_awaited(self):
            return "before the backward pass of a call with gradient checkpointing, which runs its layers again"
        return ""

    def denoising(self) -> Denoising:
        """Return the denoising of the running pipeline, otherwise of this thread."""
        pipeline_call = CALL_STACK.pipeline_call
        denoising = None if pipeline_call is None else pipeline_call.denoising(self)
        if denoising is not None:
            return denoising
        if not hasattr(self._without_pipeline, "denoising"):
            # A pipeline that is a generator ends before its steps run; a ``__call__`` that came later is not tracked.
            advice = (
                "call the model through a pipeline that returns its images; if you replaced the __call__ of its class, "
                "call ppdiffusers_tome.install() again"
            )
            tracker = TimestepTracker(self.max_timestep)
            self._without_pipeline.denoising = Denoising(self, tracker, advice=advice, has_end=False)
        return self._without_pipeline.denoising

    def warn_once(self, topic: str, message: str) -> None:
        """Warn once per topic while this ToMe is applied."""
        if topic in self._warned:
            return
        self._warned.add(topic)
        level, frame = 1, sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
            level, frame = level + 1, frame.f_back
        warnings.warn(f"ToMe: {message}", stacklevel=level + 1)

"""The state of a denoiser with ToMe: settings, constants and logged topics."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import paddle

from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.patching.state.call_stack import CALL_STACK, CHANGES, next_call_number
from ppdiffusers_tome.patching.state.calls import BlockCall, DenoiserCall
from ppdiffusers_tome.patching.state.pipeline_call import Denoising
from ppdiffusers_tome.patching.state.progress import TimestepTracker
from ppdiffusers_tome.patching.state.recompute import find_stored_call
from ppdiffusers_tome.patching.state.step_cache import StepReport
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.step_schedule import UNET

# A warning names the first line outside of these files: the user's.
_SPECS = map(find_spec, ("ppdiffusers_tome", "paddle", "ppdiffusers", "paddlenlp"))
_LIBRARIES = (*(f"{Path(spec.origin).parent}{os.sep}" for spec in _SPECS if spec and spec.origin), contextlib.__file__)


class Attachment:
    """The state that all overrides of a denoiser share; copies keep settings.

    Attributes:
        config: the settings.
        max_timestep: the timestep of pure noise in the model, 1000 in nearly all; see ``TimestepTracker``.
        constants: of the denoiser's partitions, freed with this.
        last_image: the steps of the last image with a cache over steps.
        has_run_blocks: True once any block ran in which tokens may merge.
        family: of the denoiser, see ``FAMILIES``.
        record: called with the step, key and value of each layer that the cache over steps stores; None except in
            tuning.
        watch: called with every ``BlockCall`` in which tokens merge; None for no overhead.
    """

    def __init__(self, config: ToMeConfig, max_timestep: float = 1000, family: str = UNET) -> None:
        self.config, self.max_timestep, self.family = config, max_timestep, family
        self.constants = Constants()
        self.last_image: StepReport | None = None
        self.has_run_blocks = False
        self.watch: Callable[[BlockCall], None] | None = None
        self.record: Callable[[int, Hashable, Any], None] | None = None
        self._warned: set[str] = set()
        # The steps of a denoiser without a pipeline, by thread.
        self._without_pipeline = threading.local()
        self._running: list[int] = []
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        # While the denoiser itself is traced, Paddle runs its ``forward`` without our override.
        self._traced: tuple[Any, DenoiserCall] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config, "max_timestep": self.max_timestep, "family": self.family}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @contextmanager
    def make_current(self, call: DenoiserCall) -> Iterator[None]:
        """Make a call the current one of this thread in this context."""
        is_first_run = call.number == 0
        if is_first_run:
            with CHANGES:
                call.number = next_call_number()
                self._running.append(call.number)
        CALL_STACK.calls.append(call)
        try:
            yield
        except BaseException:
            vars(self._without_pipeline).clear()  # the next call begins a new denoising
            raise
        finally:
            CALL_STACK.calls.pop()
            if is_first_run and call.is_stored:
                weakref.finalize(call, self._end, call.number)  # until then a backward pass may run its layers again
            elif is_first_run:
                self._end(call.number)

    def current_call(self) -> DenoiserCall | None:
        """Return the call that runs now, a backward pass or trace included."""
        for call in reversed(CALL_STACK.calls):
            if call.attachment is self:
                return call
        if paddle.in_dynamic_mode():
            return find_stored_call(self)
        if CALL_STACK.calls:
            return None
        program = paddle.static.default_main_program()
        if self._traced is None or self._traced[0] is not program:
            self._traced = program, DenoiserCall(self)
        return self._traced[1]

    def call_when_idle(self, number: int, action: Callable[[], None]) -> None:
        """Call ``action`` once no earlier call runs in any thread."""
        with CHANGES:
            self._waiting.append((number, action))
        self._run_idle_actions()

    def denoising(self) -> Denoising:
        """Return the denoising of the running pipeline, otherwise of this thread."""
        pipeline_call = CALL_STACK.pipeline_call
        denoising = None if pipeline_call is None else pipeline_call.denoising(self)
        if denoising is not None:
            return denoising
        if not hasattr(self._without_pipeline, "denoising"):
            tracker = TimestepTracker(self.max_timestep)
            self._without_pipeline.denoising = Denoising(tracker, self.config.reuse_steps, is_of_pipeline=False)
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

    def _end(self, number: int) -> None:
        with CHANGES:
            self._running.remove(number)
        self._run_idle_actions()

    def _run_idle_actions(self) -> None:
        with CHANGES:
            oldest = min(self._running, default=None)
            ready = [entry for entry in self._waiting if oldest is None or entry[0] < oldest]
            self._waiting = [entry for entry in self._waiting if entry not in ready]
        for _, action in ready:
            action()

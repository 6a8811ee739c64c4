"""What stays on a denoiser while ToMe is attached: settings and constants; and which call of it runs now."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.merging.constants import Constants
from ppdiffusers_tome.patching.paddle_compat import RunningCall, frames
from ppdiffusers_tome.patching.state.calls import BlockCall, Call
from ppdiffusers_tome.patching.state.pipeline_call import Denoising, current_pipeline_call
from ppdiffusers_tome.patching.state.progress import TimestepTracker
from ppdiffusers_tome.settings.config import ToMeConfig

if TYPE_CHECKING:
    from paddle.nn import Layer

# Whose lines a warning does not name.
_INSIDE = (str(Path(__file__).parents[2]), str(Path(sys.modules["paddle"].__file__ or "").parent))


@dataclass(eq=False)
class _Entry:
    """A call that runs on a thread.

    Attributes:
        attachment: whose it is.
        by: who says that it begins and ends.
        running: of the layer whose call it is.
        call: what belongs to it.
    """

    attachment: Attachment
    by: object
    running: RunningCall
    call: Call


class _Calls(threading.local):
    """The calls of denoisers that run on a thread, each within the one before; threads may share a model."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []


_calls = _Calls()


class Attachment:
    """What all hooks on one denoiser share. Copies and pickles of it have the settings alone.

    Args:
        config: the settings.
        noisiest: the timestep of pure noise in the model, 1000 in nearly all; see ``TimestepTracker``.

    Attributes:
        constants: of the denoiser's partitions, freed with this.
        watch: told of every block in which something merges, see ``BlockCall``. None costs nothing.
    """

    def __init__(self, config: ToMeConfig, max_timestep: float = 1000) -> None:
        self.config, self.max_timestep = config, max_timestep
        self.constants = Constants()
        self.watch: Callable[[BlockCall], None] | None = None
        self._warned: set[str] = set()
        # What a denoiser without a pipeline keeps from step to step, by thread.
        self._without_pipeline = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config, "noisiest": self.max_timestep}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def begin(self, by: object, layer: Layer, call: Call) -> None:
        """The call of a layer begins, the denoiser's or that of a part which is called alone or run again.

        Args:
            by: who will say that it ends. Where nobody does, it ends when ``layer`` is no longer running.
            layer: whose call it is.
            call: what belongs to it.
        """
        self.drop_failed(by, layer)
        while _entries() and not _entries()[-1].running.runs:
            _drop(_entries()[-1])
        _entries().append(_Entry(self, by, RunningCall(layer), call))
        call.begin()
        pipeline_call = current_pipeline_call()
        if pipeline_call is not None:
            pipeline_call.at_end(self, self.call)

    def end(self, by: object, *, failed: bool = False) -> None:
        """What ``by`` began ends; harmless where nothing did. ``failed``: what no longer runs ends."""
        begun = next((entry for entry in reversed(_entries()) if entry.by is by), None)
        if begun is None or (failed and begun.running.runs):
            return
        if failed:
            _drop(begun)
        else:
            _entries().remove(begun)

    def drop_failed(self, by: object, layer: Layer) -> None:
        """A layer is called: an earlier call of it that ``by`` began, and that is not around this one, has failed."""
        begun = [entry for entry in _entries() if entry.by is by]
        if begun:
            depth = RunningCall(layer).depth
            for entry in begun:
                if entry.running.depth >= depth:
                    _drop(entry)

    def call(self) -> Call | None:
        """The call that runs now on this thread.

        What a failed call left behind is dropped. Where Paddle tells nobody of a failure, and after KeyboardInterrupt
        everywhere, only its stack tells.
        """
        for entry in [entry for entry in reversed(_entries()) if entry.attachment is self]:
            if entry.running.runs:
                return entry.call
            _drop(entry)
        return None

    def others_call(self) -> bool:
        """Whether a call of another denoiser runs now on this thread: two may hold the same layers."""
        return any(entry.attachment is not self and entry.running.runs for entry in _entries())

    def block(self) -> BlockCall | None:
        """The call of a block that runs now on this thread."""
        entry = next((entry for entry in reversed(_entries()) if entry.attachment is self), None)
        block = None if entry is None else entry.call.block
        return block if block is not None and block.running.runs else None

    def denoising(self) -> Denoising:
        """What is kept from step to step: of the pipeline's call that runs now, else of this thread."""
        pipeline_call = current_pipeline_call()
        if pipeline_call is not None:
            return pipeline_call.denoising(self)
        if not hasattr(self._without_pipeline, "denoising"):
            self._without_pipeline.denoising = Denoising(TimestepTracker(self.max_timestep), self.config.reuse_steps)
        return self._without_pipeline.denoising

    def forget_steps(self) -> None:
        """The next call of the denoiser without a pipeline begins a denoising."""
        vars(self._without_pipeline).clear()

    def notify_watcher(self, block: BlockCall) -> None:
        """Show a block's matching to whoever watches."""
        if self.watch is not None and block.matching is not None:
            self.watch(block)

    def warn_once(self, topic: str, message: str) -> None:
        """Say something once a topic, not once a block, for as long as this ToMe is attached."""
        if topic not in self._warned:
            self._warned.add(topic)
            levels = (level for level, frame in enumerate(frames()) if not _is_inside(frame.f_code.co_filename))
            warnings.warn(f"ToMe: {message}", stacklevel=next(levels, 1))


def _entries() -> list[_Entry]:
    return _calls.entries


def _drop(failed: _Entry) -> None:
    _entries().remove(failed)
    failed.attachment.forget_steps()


def _is_inside(file: str) -> bool:
    return file.startswith(_INSIDE)

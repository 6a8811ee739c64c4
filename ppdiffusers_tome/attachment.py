"""What stays on a denoiser while ToMe is attached: settings and constants; and which call of it runs now."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import paddle

from ppdiffusers_tome.call import BlockCall, Call
from ppdiffusers_tome.config import ToMeConfig
from ppdiffusers_tome.constants import Constants
from ppdiffusers_tome.denoising import GuessedSteps
from ppdiffusers_tome.grid import Layout
from ppdiffusers_tome.paddle_calls import RunningCall
from ppdiffusers_tome.pipeline_call import Denoising, current_pipeline_call


@dataclass(eq=False)
class _Begun:
    """A call that has begun on a thread.

    Attributes:
        by: who says that it begins and ends.
        running: of the layer whose call it is.
        call: what belongs to it.
        outer: the call around it.
    """

    by: Any
    running: RunningCall
    call: Call
    outer: _Begun | None


class _Thread(threading.local):
    """What belongs to a thread, so that threads may share a model."""

    begun: _Begun | None = None
    denoising: Denoising | None = None


@dataclass(eq=False)
class _Noted:
    """A call that a backward pass may run parts of again, and the tensors with which they begin, all at one address."""

    call: Call
    layout: Layout | None
    tensors: list[Any] = field(default_factory=list)


class Attachment:
    """What all hooks on one denoiser share. Copies and pickles of it have the settings alone.

    Args:
        config: the settings.
        noisiest: the timestep of pure noise in the model, 1000 in nearly all; see ``GuessedSteps``.

    Attributes:
        constants: of the denoiser's partitions, freed with this.
        watch: told of every block in which something merges, see ``BlockCall``. None costs nothing.
    """

    def __init__(self, config: ToMeConfig, noisiest: float = 1000) -> None:
        self.config, self.noisiest = config, noisiest
        self.constants = Constants()
        self.watch: Callable[[BlockCall], None] | None = None
        self._warned: set[str] = set()
        self._thread = _Thread()
        self._noted: dict[int, _Noted] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config, "noisiest": self.noisiest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def begin(self, by: Any, layer: Any, call: Call) -> None:
        """The call of a layer begins, the denoiser's or that of a part which is called alone or run again.

        Args:
            by: who will say that it ends. Where nobody does, it ends when ``layer`` is no longer running.
            layer: whose call it is.
            call: what belongs to it.
        """
        outer = self._begun()
        self._thread.begun = _Begun(by, RunningCall(layer), call, outer)
        pipeline_call = current_pipeline_call()
        if pipeline_call is not None:
            pipeline_call.at_end(self, self._begun)

    def end(self, by: Any, *, failed: bool = False) -> None:
        """What ``by`` began ends; harmless where nothing did. ``failed``: nothing is kept for the next call either."""
        begun = self._thread.begun
        while begun is not None and begun.by is not by:
            begun = begun.outer
        if begun is not None:
            self._thread.begun = begun.outer
            if begun.outer is None:
                del self._thread.begun
            if failed:
                self._thread.denoising = None

    def call(self) -> Call | None:
        """The call that runs now on this thread."""
        begun = self._begun()
        return None if begun is None else begun.call

    def block(self) -> BlockCall | None:
        """The call of a block that runs now on this thread."""
        begun = self._thread.begun
        block = None if begun is None else begun.call.block
        return block if block is not None and block.running.runs else None

    def denoising(self) -> Denoising:
        """What is kept from step to step: of the pipeline's call that runs now, else of this thread."""
        pipeline_call = current_pipeline_call()
        if pipeline_call is not None:
            return pipeline_call.denoising(self)
        if self._thread.denoising is None:
            self._thread.denoising = Denoising(GuessedSteps(self.noisiest), self.config.reuse_steps)
        return self._thread.denoising

    def note(self, x: paddle.Tensor, call: Call, layout: Layout | None) -> None:
        """Remember which call a layer belongs to that begins with ``x``, for as long as ``x`` lives.

        Gradient checkpointing runs layers again during the backward pass, outside their denoiser and maybe in another
        thread, after other calls at other sizes. Their input is then the very memory of the first run, kept alive for
        that purpose, so its address tells the runs apart.
        """
        address = x.data_ptr()
        noted = self._noted.get(address)
        if noted is None or noted.call is not call:
            noted = self._noted[address] = _Noted(call, layout)
        elif layout is not None:
            noted.layout = layout
        noted.tensors.append(weakref.ref(x, lambda tensor: self._forget(address, noted, tensor)))

    def noted(self, x: paddle.Tensor) -> tuple[Call, Layout | None] | None:
        """The call that a layer belongs to which is run again on the memory of ``x``; None where it is none of ours."""
        noted = self._noted.get(x.data_ptr()) if paddle.in_dynamic_mode() else None
        return None if noted is None else (noted.call, noted.layout)

    def tell_watcher(self, block: BlockCall) -> None:
        """Show a block's matching to whoever watches."""
        if self.watch is not None and block.matching is not None:
            self.watch(block)

    def warn_once(self, topic: str, message: str) -> None:
        """Say something once a topic, not once a block, for as long as this ToMe is attached."""
        if topic not in self._warned:
            self._warned.add(topic)
            warnings.warn(f"ToMe: {message}", stacklevel=2)

    def _begun(self) -> _Begun | None:
        """What begun last and still runs; what a failed call left behind is dropped.

        Where Paddle tells nobody of a failure, and after KeyboardInterrupt everywhere, only its stack tells.
        """
        begun = self._thread.begun
        while begun is not None and not begun.running.runs:
            begun = begun.outer
            self._thread.denoising = None
            self._thread.begun = begun
        if begun is None and "begun" in vars(self._thread):
            del self._thread.begun
        return begun

    def _forget(self, address: int, noted: _Noted, tensor: Any) -> None:
        noted.tensors.remove(tensor)
        if not noted.tensors and self._noted.get(address) is noted:
            del self._noted[address]

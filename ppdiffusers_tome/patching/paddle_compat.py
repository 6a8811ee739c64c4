"""What tracing by Paddle needs to know of our overrides, in Paddle 2.6 and 3."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import paddle
from paddle.base.dygraph.base import in_to_static_mode
from paddle.jit.dy2static.convert_call_func import convert_call
from paddle.jit.dy2static.program_translator import StaticFunction
from paddle.jit.sot import psdb
from paddle.jit.sot.opcode_translator.executor.executor_cache import OpcodeExecutorCache

# Options of ``psdb.fallback``. As the first call of a function it leaves the function, and all that it calls, to Python
# where Paddle traces bytecode (``to_static`` without ``full_graph``); otherwise it does nothing.
EVERY_FRAME: dict[str, Any] = (
    {"recursive": True} if "recursive" in inspect.signature(psdb.fallback).parameters else {}
)


def exclude_from_conversion(cls: type) -> type:
    """Have Paddle call objects of a class as they are while it traces, instead of rewriting their source."""

    def marked() -> None:
        pass

    for name, mark in vars(paddle.jit.not_to_static(marked)).items():
        setattr(cls, name, mark)
    return cls


def convert_while_tracing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what Paddle would call in place of a function while it traces one; otherwise the function itself."""
    return convert_call(function) if not paddle.in_dynamic_mode() and in_to_static_mode() else function


def is_called_by_to_static() -> bool:
    """Return whether ``paddle.jit.to_static`` asks the caller what it is, a few calls above on the stack."""
    frame = sys._getframe(1)
    for _ in range(3):
        if frame.f_back is None:
            return False
        frame = frame.f_back
        if frame.f_code is StaticFunction.__init__.__code__:
            return True
    return False


def drop_traced_programs(function: object) -> bool:
    """Have a function that ``paddle.jit.to_static`` made trace its programs again; report whether it is one."""
    if not isinstance(function, StaticFunction):
        return False
    function._program_cache._caches.clear()
    OpcodeExecutorCache().clear()  # of to_static without full_graph, in one place for all functions
    return True

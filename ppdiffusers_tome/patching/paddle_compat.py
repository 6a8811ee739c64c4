"""What tracing by Paddle needs to know of our overrides, in Paddle 2.6 and 3."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import paddle
from paddle.base.dygraph.base import in_to_static_mode
from paddle.jit.dy2static.convert_call_func import convert_call
from paddle.jit.dy2static.program_translator import ALREADY_D2S, StaticFunction, SymbolicStaticFunction
from paddle.jit.sot import psdb
from paddle.jit.sot.opcode_translator.executor.executor_cache import OpcodeExecutorCache

from ppdiffusers_tome.errors import ToMeValueError

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
    if paddle.in_dynamic_mode() or not in_to_static_mode() or getattr(function, ALREADY_D2S, False):
        return function  # Paddle 2.6 leaves the functions that it traced on their layers
    return convert_call(function)


def is_called_by_to_static() -> bool:
    """Return whether ``paddle.jit.to_static`` asks the caller what it is, a few calls above on the stack.

    Raises:
        ToMeValueError: it would trace bytecode on a Paddle that cannot leave merging to Python.
    """
    frame = sys._getframe(1)
    for _ in range(3):
        if frame.f_back is None:
            return False
        frame = frame.f_back
        if frame.f_code is StaticFunction.__init__.__code__:
            require_whole_graph(frame.f_locals.get("self"))
            return True
        if frame.f_code.co_name == "from_func_spec":  # Paddle 2.6 asks again when it traces the function
            return True
    return False


def require_whole_graph(function: object) -> None:
    """Refuse a function of ``paddle.jit.to_static`` without ``full_graph`` on Paddle 2.6.

    Raises:
        ToMeValueError: the function is one.
    """
    if isinstance(function, SymbolicStaticFunction) and not EVERY_FRAME:
        raise ToMeValueError(
            f"paddle.jit.to_static traces bytecode, which does not go together with ToMe on Paddle "
            f"{paddle.__version__}; call it with full_graph=True, or install paddlepaddle 3"
        )


def drop_traced_programs(function: object) -> bool:
    """Have a function that ``paddle.jit.to_static`` made trace its programs again; report whether it is one."""
    if not isinstance(function, StaticFunction):
        return False
    function._program_cache._caches.clear()
    OpcodeExecutorCache().clear()  # of to_static without full_graph, in one place for all functions
    return True

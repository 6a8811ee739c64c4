"""Compatibility with the tracing of Paddle 2.6 and 3."""

import inspect
from collections.abc import Callable
from typing import Any

import paddle
from paddle.base.dygraph.base import in_to_static_mode
from paddle.jit.dy2static.convert_call_func import convert_call
from paddle.jit.dy2static.program_translator import ALREADY_D2S, StaticFunction
from paddle.jit.sot import psdb
from paddle.nn import Layer

from ppdiffusers_tome.errors import ToMeValueError

# Where ``to_static`` without ``full_graph`` traces bytecode, a function that begins with ``psdb.fallback(**FALLBACK)``
# runs in plain Python, as does all that it calls, unless it contains ``try`` or ``with``; elsewhere that does nothing.
# Empty on Paddle 2.6, which cannot do so.
FALLBACK: dict[str, Any] = {"recursive": True} if "recursive" in inspect.signature(psdb.fallback).parameters else {}


def convert_while_tracing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return Paddle's conversion of a function while it traces, else the function."""
    if not in_to_static_mode() or getattr(function, ALREADY_D2S, False):
        return function  # Paddle 2.6 leaves the functions that it traced on their layers
    return convert_call(function)


def require_untraced(layer: Layer) -> None:
    """Refuse a layer that ``paddle.jit.to_static`` traced before ToMe or as bytecode."""
    if isinstance(vars(layer).get("forward"), StaticFunction):
        raise ToMeValueError(
            f"paddle.jit.to_static came before apply_tome on {type(layer).__name__}, or without full_graph; call "
            "apply_tome first, and then trace the whole model with full_graph=True"
        )


def require_eager(what: str, remedy: str, why: str = "which fixes how many tokens merge") -> None:
    """Refuse a feature while a program is traced, which cannot contain it."""
    if not paddle.in_dynamic_mode():
        raise ToMeValueError(f"{what} cannot become part of a program, {why}; {remedy} before tracing")


def drop_traced_programs(function: object) -> None:
    """Drop the programs of a function if ``paddle.jit.to_static`` made it."""
    if isinstance(function, StaticFunction):
        function._program_cache._caches.clear()

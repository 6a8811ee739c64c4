"""Operators of a merge on Paddle's device, compared with numpy.

Importing this needs no Paddle, which may be broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ppdiffusers_tome.merging.methods import CHOSEN, METHODS, POOLED
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import presets
from ppdiffusers_tome.tools.doctor.imports import ENDED

# Methods: all; those that choose tokens, keep some as keys, compare them, use group sizes, add rows, or reduce queries.
_ALL = frozenset(METHODS)
_CHOOSING = frozenset(name for name, method in METHODS.items() if method.key_reduction != POOLED)
_KEEPING = frozenset(name for name, method in METHODS.items() if method.key_reduction == CHOSEN)
_COMPARING = frozenset(name for name, method in METHODS.items() if method.compares)
_WEIGHTING = frozenset(name for name, method in METHODS.items() if method.proportional)
_ADDING, _TOFU = _COMPARING | (_ALL - _CHOOSING), frozenset({"tofu"})
_MERGING = frozenset(name for name, method in METHODS.items() if not method.keeps_queries)
# Types: of tokens; of products, which are float16 in both types of half precision; of lengths and sums; of indices.
_HALF = ("float16", "bfloat16")
_TOKENS, _PRODUCTS, _WIDE, _INDEX = ("float32", *_HALF), ("float32", "float16"), ("float32",), ("int64",)
_ROWS, _SWAPPED, _OWNER = [2, 0, 3], [1, 0, 3, 2], [1, 0, 1, 2]
_Operator = tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any], tuple[str, ...], frozenset[str]]


def _gather(paddle: Any, x: Any) -> Any:
    return paddle.gather(x, paddle.to_tensor(_ROWS))


def _select(paddle: Any, x: Any) -> Any:
    return paddle.index_select(x, paddle.to_tensor(_ROWS))


def _add_rows(paddle: Any, x: Any) -> Any:
    from ppdiffusers_tome.merging.tensor_ops import scatter_rows

    return scatter_rows(x, paddle.to_tensor(_OWNER, dtype="int32"), 3, add=True, in_place=True)


# What computes each of Paddle and a [4, 6] tensor, what of numpy and an array, the tensor's types, and methods that run
# it. Names are Paddle 3's. Views, constants and memory without values are omitted.
OPERATORS: Mapping[str, _Operator] = {
    "add": (lambda p, x: x + x, lambda n, x: x + x, ("int32", "int64"), _ALL),
    "arange": (lambda p, x: p.arange(0, 9, 4, dtype="int64"), lambda n, x: [0, 4, 8], _INDEX, _ADDING),
    "argmax": (lambda p, x: x.argmax(axis=-1), lambda n, x: x.argmax(axis=-1), _PRODUCTS, _COMPARING),
    "argsort": (lambda p, x: p.argsort(x, descending=True), lambda n, x: n.argsort(-x), _WIDE, _COMPARING),
    "cast": (lambda p, x: x.astype("float32"), lambda n, x: x, (*_HALF, *_INDEX), _ALL),
    "clip": (lambda p, x: p.clip(x, min=1.0), lambda n, x: n.maximum(x, 1.0), _WIDE, _TOFU),
    "concat": (lambda p, x: p.concat([x, x]), lambda n, x: n.concatenate([x, x]), _INDEX, _CHOOSING),
    "divide": (lambda p, x: x / (x + x), lambda n, x: x / (x + x), _WIDE, _TOFU),
    "expand": (lambda p, x: x[:1].expand([4, 6]), lambda n, x: n.stack(4 * [x[0]]), _INDEX, _ADDING),
    "gather of indices": (_gather, lambda n, x: x[_ROWS], _INDEX, _CHOOSING),
    "gather of products": (_gather, lambda n, x: x[_ROWS], _PRODUCTS, _COMPARING),
    "gather of tokens": (_gather, lambda n, x: x[_ROWS], _TOKENS, _MERGING),
    "index_select of products": (_select, lambda n, x: x[_ROWS], _PRODUCTS, _COMPARING),
    "index_select of tokens": (_select, lambda n, x: x[_ROWS], _TOKENS, _KEEPING),
    "log": (lambda p, x: p.log(x), lambda n, x: n.log(x), _WIDE, _WEIGHTING),
    "matmul": (lambda p, x: p.matmul(x, x, transpose_y=True), lambda n, x: x @ x.T, _PRODUCTS, _COMPARING),
    "multiply": (lambda p, x: x * x, lambda n, x: x * x, _WIDE, _ADDING),
    "multiply of indices": (lambda p, x: x * x, lambda n, x: x * x, _INDEX, _CHOOSING),
    "reciprocal": (lambda p, x: p.reciprocal(x), lambda n, x: 1 / x, _WIDE, _COMPARING),
    "remainder": (lambda p, x: x % 5, lambda n, x: x % 5, _INDEX, _CHOOSING),
    "rsqrt": (lambda p, x: p.rsqrt(x), lambda n, x: x**-0.5, _WIDE, _COMPARING),
    "scale": (lambda p, x: p.scale(x, 2.0, 1.0), lambda n, x: 2 * x + 1, _WIDE, _ALL),
    "scatter": (lambda p, x: p.scatter(x, p.to_tensor(_SWAPPED), x), lambda n, x: x[_SWAPPED], ("int32",), _COMPARING),
    "scatter of sums": (_add_rows, lambda n, x: n.stack([x[1], x[0] + x[2], x[3]]), _WIDE, _ADDING),
    "sqrt": (lambda p, x: p.sqrt(x), lambda n, x: n.sqrt(x), _WIDE, _TOFU),
    "sum": (lambda p, x: x.sum(axis=-1), lambda n, x: x.sum(axis=-1), _WIDE, _COMPARING),
}


def check_operators() -> Iterator[dict[str, str]]:
    """Run all operators; yield the findings before each, which may crash."""
    import paddle

    device, faults = paddle.get_device(), dict[str, str]()
    cases = [(name, dtype) for name, (_, _, dtypes, _) in OPERATORS.items() for dtype in dtypes]
    if device == "cpu":  # Paddle has no half precision there
        cases = [case for case in cases if case[1] not in _HALF]
    for name, dtype in cases:
        yield {"device": device, **faults, f"{name} in {dtype}": ENDED}
        if fault := _find_fault(name, dtype):
            faults[f"{name} in {dtype}"] = fault
    yield {"device": device, "equal to numpy": f"{len(cases) - len(faults)} of {len(cases)}", **faults}


def _find_fault(name: str, dtype: Any) -> str | None:
    """Run an operator; return how it fails, or None."""
    import numpy as np
    import paddle

    run, expect, *_ = OPERATORS[name]
    values = (np.arange(24).reshape(4, 6) * 7 % 24 + 1) / (1 if dtype.startswith("int") else 8)
    try:
        found = run(paddle, paddle.to_tensor(values.astype("float32")).astype(dtype)).cpu().astype("float64").numpy()
    except Exception as error:  # of many kinds, by device
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]
    tolerance = 1e-2 if dtype in _HALF else 1e-5
    return None if np.allclose(found, np.asarray(expect(np, values)), rtol=tolerance) else "its numbers are wrong"


def explain_faults(found: Mapping[str, str]) -> Iterator[str]:
    """Explain each fault that ``check_operators`` found, with the methods that do without the operator."""
    for case, fault in found.items():
        *_, methods = OPERATORS.get(case.rpartition(" in ")[0], [_ALL])
        working = [name for name in METHODS if name not in methods]
        working += [name for name in presets() if ToMeConfig.preset(name).method in working]
        if " in " in case:
            remedy = f"these do without it: {', '.join(working)}" if working else "no method does without it"
            yield f"{case} fails on {found['device']}, {fault}; {remedy}"

"""Every merging method run on Paddle's device.

Importing this needs no Paddle, which may be broken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.config import ToMeConfig

_SIDE = 8  # of the grid, in tokens


def check_methods() -> dict[str, str]:
    """Run all methods in all types; count those that work."""
    import paddle

    device, faults = paddle.get_device(), dict[str, str]()
    dtypes = ("float32",) if device == "cpu" else ("float32", "float16", "bfloat16")  # a CPU has no half precision
    cases = [(name, dtype) for dtype in dtypes for name in METHODS]
    for name, dtype in cases:
        if fault := _find_fault(name, dtype):
            faults[f"{name} in {dtype}"] = fault
    return {"device": device, "work": f"{len(cases) - len(faults)} of {len(cases)}", **faults}


def _find_fault(name: str, dtype: Any) -> str | None:
    """Merge tokens that are equal in each cell; explain failures."""
    import numpy as np
    import paddle

    from ppdiffusers_tome.merging.grid import Grid, Layout
    from ppdiffusers_tome.merging.matching import Matching
    from ppdiffusers_tome.patching.state.reducer import build_reducer

    grid, method, config = Grid(_SIDE, _SIDE), METHODS[name], ToMeConfig(0.7, method=name)
    cells = np.arange(_SIDE) // 2
    cell_of_token = (cells[:, None] * (_SIDE // 2) + cells).ravel()
    tokens = np.eye(_SIDE**2 // 4, dtype=np.float32)[cell_of_token][None].repeat(2, axis=0)
    try:
        x = paddle.to_tensor(tokens).astype(dtype)
        timestep = paddle.to_tensor([500], dtype="int64")
        reduction = build_reducer(config, Layout(grid), grid.num_merged(0.7), timestep=timestep)(x)
        reduced = reduction.reduce(x)
        restored = x if method.keeps_queries else reduction.restore(reduced)
        values = [each.astype("float32").numpy() for each in (reduced, restored)]
        if isinstance(reduction, Matching):
            _ = reduction.log_group_sizes
        if not (np.allclose(values[0].max(axis=1), 1, atol=1e-2) and np.allclose(values[1], tokens, atol=1e-2)):
            return "its numbers are wrong"
    except Exception as error:  # of many kinds, by device
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return None


def explain_faults(found: Mapping[str, str]) -> list[str]:
    """Explain each fault that ``check_methods`` found."""
    return [f"method {case} fails on {found['device']}, {fault}" for case, fault in found.items() if " in " in case]

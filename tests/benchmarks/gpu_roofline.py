"""Estimate the cost of merging on a GPU, without measuring anything.

Kernel launches and bytes moved are counted; a roofline gives times.

    PYTHONPATH=tests python -m benchmarks.gpu_roofline --output docs/measured/gpu

Needs Paddle 2.6, whose programs may be traced in float16 without a GPU (make PADDLE=2.6.2 VENV=.venv-2.6 lint makes
such an environment).
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.block import MERGE, PARTITION, STAGES, UNMERGE, BlockCase
from benchmarks.gpu_costs import DEVICES, LAUNCH_SECONDS, Cost, Device, seconds_of
from benchmarks.gpu_trace import TRACED, Data, Operator, trace

Row = list[object]
ONCE_A_BLOCK, REUSED = STAGES, (MERGE, UNMERGE)
CASES = (BlockCase(2, 64, 64), BlockCase(16, 64, 64), BlockCase(2, 128, 128), BlockCase(16, 128, 128))


def cost_of(operator: Operator) -> Cost:
    """Return the cost of an operator by ``RULES``."""
    if operator.name not in RULES:
        raise SystemExit(f"no rule for the operator {operator.name}; say in RULES what it launches and moves")
    copies = [data for data in operator.inputs.values() if data.strided]
    made_whole = Cost(len(copies), 2 * _bytes(copies))
    return RULES[operator.name](operator) + (Cost() if operator.name in VIEWS else made_whole)


def _view(operator: Operator) -> Cost:
    # A view of a view with gaps stays one, unless the shape asked for cannot be had without a copy.
    copies = operator.name in ("reshape2", "flatten_contiguous_range") and operator.inputs["X"].strided
    return Cost(1, 2 * _bytes(operator.outputs[:1])) if copies else Cost()


def _all_in_all_out(operator: Operator) -> Cost:
    return Cost(1, _bytes(operator.inputs.values()) + _bytes(operator.outputs))


def _only_out(operator: Operator) -> Cost:
    return Cost() if operator.attributes.get("force_cpu") else Cost(1, _bytes(operator.outputs))


def _gather(operator: Operator) -> Cost:
    return Cost(1, operator.inputs["Index"].num_bytes + 2 * _bytes(operator.outputs))


def _scatter(operator: Operator) -> Cost:
    x, index, updates = (operator.inputs[slot] for slot in ("X", "Ids", "Updates"))
    copy = Cost() if operator.in_place else Cost(1, 2 * x.num_bytes)
    write = Cost(1, index.num_bytes + 2 * updates.num_bytes)
    if operator.attributes["overwrite"]:
        return copy + write
    # Adding: one kernel sets the rows that are added to to zero, a second reads, adds and writes them.
    return copy + write + Cost(1, index.num_bytes + 2 * updates.num_bytes)


def _put_along_axis(operator: Operator) -> Cost:
    x, index, value = (operator.inputs[slot] for slot in ("Input", "Index", "Value"))
    copy = Cost() if operator.in_place else Cost(1, 2 * x.num_bytes)
    touched = 2 if operator.attributes["Reduce"] == "assign" else 3
    return copy + Cost(1, index.num_bytes + touched * value.num_bytes)


def _argsort(operator: Operator) -> Cost:
    """Count cub's radix sort: a pass for 8 bits of a key."""
    x = operator.inputs["X"]
    length = x.shape[operator.attributes["axis"]]
    rows, key_bytes = x.size // length, x.num_bytes // x.size
    swept = 2 * x.size * (key_bytes + 8)
    turned = 0 if x.shape[-1] == length else 3  # any axis but the last: transposed, and keys and indices back
    if rows == 1:  # numbers, a copy, and thrust's sort: histogram, sum, passes
        return Cost(4 + key_bytes, swept * (1 + key_bytes))
    if rows <= 4:  # numbers, one sort of all rows by key, one by row (a single pass), and the reordering
        return Cost(turned + 1 + (2 + key_bytes) + 3 + 1, swept * (key_bytes + 3) + turned * 2 * x.size * 8)
    passes = math.ceil(8 * key_bytes / 6)  # a segmented sort: 6 bits a pass
    return Cost(turned + 1 + passes, swept * passes + turned * 2 * x.size * 8)


def _matmul(operator: Operator) -> Cost:
    x, out = operator.inputs["X"], operator.outputs[0]
    inner = x.shape[-2 if operator.attributes["trans_x"] else -1]
    return _all_in_all_out(operator) + Cost(0, 0, 2 * out.size * inner)


VIEWS = ("reshape2", "flatten_contiguous_range", "unsqueeze2", "squeeze2", "slice", "transpose2")
RULES: dict[str, Callable[[Operator], Cost]] = {
    **dict.fromkeys(VIEWS, _view),
    "empty": lambda operator: Cost(),
    **dict.fromkeys(("fill_constant", "fill_any_like", "assign_value", "range", "randint"), _only_out),
    **dict.fromkeys(("cast", "scale", "rsqrt", "sqrt", "reciprocal", "square", "assign"), _all_in_all_out),
    **{
        f"elementwise_{name}": _all_in_all_out for name in ("add", "sub", "mul", "div", "mod", "floordiv", "min", "max")
    },
    **dict.fromkeys(("less_than", "less_equal", "greater_than", "greater_equal", "where"), _all_in_all_out),
    **dict.fromkeys(("reduce_sum", "reduce_max", "p_norm", "arg_max", "top_k_v2"), _all_in_all_out),
    **dict.fromkeys(("concat", "stack", "expand_v2"), _all_in_all_out),
    **dict.fromkeys(("gather", "index_select", "take_along_axis"), _gather),
    "scatter": _scatter,
    "put_along_axis": _put_along_axis,
    "argsort": _argsort,
    "matmul_v2": _matmul,
}


def attention(case: BlockCase, num_queries: int, num_keys: int) -> list[Cost]:
    """Count self-attention: four projections, and a fused kernel that writes no scores."""

    def projection(num_tokens: int) -> Cost:
        tokens = 2 * case.batch * num_tokens * case.channels
        return Cost(1, 2 * tokens + 2 * case.channels**2, tokens * case.channels)

    read_and_written = 2 * case.batch * (2 * num_queries + 2 * num_keys) * case.channels
    core = Cost(1, read_and_written, 4 * case.batch * num_queries * num_keys * case.channels)
    return [core, *([projection(num_queries)] * 2), *([projection(num_keys)] * 2)]


def costs_of(operators: Iterable[Operator], stages: tuple[str, ...]) -> list[Cost]:
    """Return the costs of the operators of some stages."""
    return [cost_of(operator) for operator in operators if operator.stage in stages]


def _bytes(tensors: Iterable[Data]) -> int:
    return sum(data.num_bytes for data in tensors)


def estimate_case(case: BlockCase, launch_seconds: float) -> tuple[list[Row], list[Row]]:
    """Estimate one size: the costs of every variant, and whether merging can pay."""

    def microseconds(costs: list[Cost], device: Device) -> float:
        return 1e6 * seconds_of(costs, device, launch_seconds)

    traces = {name: trace(stages, case) for name, stages in TRACED.items()}
    num_tokens, num_left = case.grid.num_tokens, case.grid.num_tokens - case.num_merged
    size = f"{case.batch} images, {case.height}x{case.width} tokens, {case.channels} channels"
    totals = {"ours, matching reused": costs_of(traces["ours"], REUSED)}
    totals |= {name: costs_of(operators, ONCE_A_BLOCK) for name, operators in traces.items()}
    plain, merged = attention(case, num_tokens, num_tokens), attention(case, num_left, num_left)
    fewer_keys = attention(case, num_tokens, num_left)
    shown = {
        **totals,
        "ours, partition (once a call and grid)": costs_of(traces["ours"], (PARTITION,)),
        "self-attention, unmerged": plain, "self-attention, merged": merged,
        "self-attention, keys downsampled": fewer_keys,
    }  # fmt: skip
    blocks, saved = [], []
    for name, costs in shown.items():
        total, started = sum(costs, Cost()), sum(1 for cost in costs if cost.launches)
        times = [f"{microseconds(costs, device):,.0f}" for device in DEVICES]
        moved, products = f"{total.num_bytes / 1e6:,.1f}", f"{total.flops / 1e9:,.2f}"
        blocks.append([size, name, started, total.launches, moved, products, *times])
    for name, costs in totals.items():
        left, cells = fewer_keys if "todo" in name else merged, []
        for device in DEVICES:
            gain, cost = microseconds(plain, device) - microseconds(left, device), microseconds(costs, device)
            cells.append(f"{gain:,.0f} - {cost:,.0f} = {gain - cost:,.0f}")
        saved.append([size, name, *cells])
    return blocks, saved


def write_csv(path: Path, headings: Row, rows: Iterable[Row]) -> None:
    """Write a table."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([headings, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launch-microseconds", type=float, default=1e6 * LAUNCH_SECONDS,
                        help="an assumption, for every kernel")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where the tables go")
    args = parser.parse_args()
    import paddle  # after ppdiffusers_tome, see docs/en/get-started/installation.md

    if not paddle.__version__.startswith("2.6."):
        sys.exit(f"Paddle {paddle.__version__} traces no float16 without a GPU; run this with Paddle 2.6")
    found = [estimate_case(case, args.launch_microseconds / 1e6) for case in CASES]
    devices = [device.name for device in DEVICES]
    args.output.mkdir(parents=True, exist_ok=True)
    write_csv(
        args.output / "blocks.csv",
        ["size", "estimate for one block", "operators that launch", "launches", "MB moved", "GFLOP",
         *(f"{name}, µs" for name in devices)],
        [row for blocks, _ in found for row in blocks],
    )  # fmt: skip
    write_csv(
        args.output / "saved.csv",
        ["size", "attention saved, less this", *(f"{name}, estimate: saved - cost, µs" for name in devices)],
        [row for _, saved in found for row in saved],
    )


if __name__ == "__main__":
    main()

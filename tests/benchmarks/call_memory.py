"""Measure the peak memory of one call of Stable Diffusion 1.5's UNet.

    PYTHONPATH=tests python -m benchmarks.call_memory --sizes 512 1024 --variants none ours preset-balanced

In MiB, on a CPU. Each variant and size has a process of its own, whose peak (VmHWM) counts the libraries and weights,
too, and beside it what the call added to them.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.variants import VARIANTS, apply_variant
from benchmarks.workloads import CPU, PLAIN, Case, load_workload
from ppdiffusers_tome.cpu import prepare_cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sd15-random")
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 768, 1024])
    parser.add_argument("--attention", choices=(CPU, PLAIN), default=CPU)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    args = parser.parse_args()
    print("size, variant, peak MiB, of which the call added MiB", flush=True)
    for size in args.sizes:
        for name in args.variants:
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                before, peak = process.submit(measure_peaks, args.model, args.attention, size, name).result()
            print(f"{size}x{size}, {name}, {peak:.0f}, {peak - before:.0f}", flush=True)


def measure_peaks(model_name: str, attention: str, size: int, name: str) -> tuple[float, float]:
    """Return the resident memory before a call, and the peak after it, in MiB."""
    prepare_cpu()
    model, run = load_workload(Case(model_name, "float32", attention, size, batch=1, steps=1))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = read_mebibytes("VmRSS")
    with apply_variant(model, VARIANTS[name], 0.5):
        run(1)
    return before, read_mebibytes("VmHWM")


def read_mebibytes(field: str) -> float:
    """Read a size of this process, such as ``VmHWM``, its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    main()

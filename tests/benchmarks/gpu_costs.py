"""Costs of work on a GPU: kernels, bytes, operations, and seconds.

Layers are counted in half precision, as Paddle's dynamic mode runs them: a kernel an operator. Biases are kernels of
their own, as in a traced program of ppdiffusers' models; views are free. A layer is a list of its kernels' costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LAUNCH_SECONDS = 4e-6  # assumed, for every kernel that is started
HALF, FULL = 2, 4  # bytes of a number


@dataclass(frozen=True)
class Device:
    """Peak rates, from NVIDIA's data sheets."""

    name: str
    bytes_per_second: float
    flops_per_second: float


DEVICES = (Device("A100 80GB SXM", 2039e9, 312e12), Device("H200", 4800e9, 989e12))


@dataclass(frozen=True)
class Cost:
    """Cost of an operator: kernels started, bytes moved, operations of a product."""

    launches: int = 0
    num_bytes: int = 0
    flops: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.launches + other.launches, self.num_bytes + other.num_bytes, self.flops + other.flops)

    def seconds(self, device: Device, launch_seconds: float = LAUNCH_SECONDS) -> float:
        """Return the longer of moving the bytes and of the operations, plus the launches."""
        work = max(self.num_bytes / device.bytes_per_second, self.flops / device.flops_per_second)
        return work + self.launches * launch_seconds


def seconds_of(costs: Iterable[Cost], device: Device, launch_seconds: float = LAUNCH_SECONDS) -> float:
    """Sum the seconds of operators that run one after the other."""
    return sum(cost.seconds(device, launch_seconds) for cost in costs)


Costs = list[Cost]


def kernel(*entries: int) -> Cost:
    """Return one kernel that reads and writes half-precision tensors; its operations do not count."""
    return Cost(1, HALF * sum(entries))


def elementwise(entries: int, times: int = 1) -> Costs:
    """Return kernels that each read a tensor and write one of its size."""
    return [kernel(entries, entries)] * times


def add_kernel(entries: int) -> Cost:
    """Return the kernel that adds or multiplies two tensors."""
    return kernel(entries, entries, entries)


def linear(rows: int, inner: int, outer: int, *, bias: bool = True) -> Costs:
    """Return a linear layer from rows of ``inner`` numbers to rows of ``outer``."""
    product = Cost(1, HALF * (rows * inner + inner * outer + rows * outer), 2 * rows * inner * outer)
    return [product, *elementwise(rows * outer, int(bias))]


def convolution(points: int, inner: int, outer: int, *, kernel_side: int = 3, stride: int = 1) -> Costs:
    """Return a convolution with bias over the pixels of all images."""
    weights, out = kernel_side**2 * inner * outer, points // stride**2
    return [Cost(1, HALF * (points * inner + weights + out * outer), 2 * out * weights), *elementwise(out * outer)]


def attention_costs(batch: int, queries: int, keys: int, channels: int) -> Costs:
    """Return a kernel that writes no scores, and a cast of its output."""
    read_and_written = HALF * batch * 2 * (queries + keys) * channels
    return [Cost(1, read_and_written, 4 * batch * queries * keys * channels), *elementwise(batch * queries * channels)]

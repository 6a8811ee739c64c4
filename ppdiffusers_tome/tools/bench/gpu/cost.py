"""What work on a GPU costs: kernels started, bytes, operations; and how long a roofline says it takes. No Paddle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LAUNCH_SECONDS = 4e-6  # assumed, for every kernel that is started


@dataclass(frozen=True)
class Device:
    """Peak rates, from NVIDIA's data sheets."""

    name: str
    bytes_per_second: float
    flops_per_second: float


DEVICES = (Device("A100 80GB SXM", 2039e9, 312e12), Device("H200", 4800e9, 989e12))


@dataclass(frozen=True)
class Cost:
    """What one operator costs: kernels started, bytes read and written, floating point operations of a product."""

    launches: int = 0
    num_bytes: int = 0
    flops: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.launches + other.launches, self.num_bytes + other.num_bytes, self.flops + other.flops)

    def seconds(self, device: Device, launch_seconds: float = LAUNCH_SECONDS) -> float:
        """The longer of moving the bytes and of the operations, and the launches."""
        work = max(self.num_bytes / device.bytes_per_second, self.flops / device.flops_per_second)
        return work + self.launches * launch_seconds


def seconds_of(costs: Iterable[Cost], device: Device, launch_seconds: float = LAUNCH_SECONDS) -> float:
    """Of operators that run one after the other."""
    return sum(cost.seconds(device, launch_seconds) for cost in costs)

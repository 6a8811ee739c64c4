"""What the layers of a denoiser cost in half precision, as Paddle's dynamic mode runs them: a kernel an operator.

Every layer is a list of what its kernels cost. Biases are kernels of their own, as in a traced program of ppdiffusers'
models; views are free. Knows no Paddle.
"""

from __future__ import annotations

from ppdiffusers_tome.tools.bench.gpu.cost import Cost

HALF, FULL = 2, 4  # bytes of a number
Costs = list[Cost]


def kernel(*entries: int) -> Cost:
    """One that reads and writes half-precision tensors of so many entries, and whose operations do not count."""
    return Cost(1, HALF * sum(entries))


def through(entries: int, times: int = 1) -> Costs:
    """So many kernels, each of which reads a tensor and writes one of its size: a norm, an activation, a scale."""
    return [kernel(entries, entries)] * times


def added(entries: int) -> Cost:
    """Two tensors of that many entries added, or multiplied, to a third."""
    return kernel(entries, entries, entries)


def linear(rows: int, inner: int, outer: int, *, bias: bool = True) -> Costs:
    """Rows of ``inner`` numbers to rows of ``outer``."""
    product = Cost(1, HALF * (rows * inner + inner * outer + rows * outer), 2 * rows * inner * outer)
    return [product, *through(rows * outer, int(bias))]


def convolution(points: int, inner: int, outer: int, *, kernel_side: int = 3, stride: int = 1) -> Costs:
    """``points`` that come in, of all images; a bias too."""
    weights, out = kernel_side**2 * inner * outer, points // stride**2
    return [Cost(1, HALF * (points * inner + weights + out * outer), 2 * out * weights), *through(out * outer)]


def fused_attention(batch: int, queries: int, keys: int, channels: int) -> Costs:
    """One kernel that writes no scores, and a cast of what it gives, which ppdiffusers' processors always make."""
    read_and_written = HALF * batch * 2 * (queries + keys) * channels
    return [Cost(1, read_and_written, 4 * batch * queries * keys * channels), *through(batch * queries * channels)]

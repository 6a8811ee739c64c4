"""Muon for matrices of equal shape at once, which an accelerator does in few launches."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn

MOMENTUM = 0.95


class Muon:
    """Muon for matrices (Jordan et al. 2024), AdamW for other weights, at half the rate.

    Every weight of two or four dimensions counts as a matrix; the kernels of a convolution are its rows. Updates are
    scaled like AdamW's (Liu et al. 2025, arXiv 2502.16982), so AdamW's rates can be used.

    Args:
        model: whose weights have gradients after each backward pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self._groups: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
        others = []
        for parameter in model.parameters():
            if parameter.ndim in (2, 4):
                self._groups[tuple(parameter.shape)].append(parameter)
            else:
                others.append(parameter)
        self._momenta = {shape: torch.zeros(()) for shape in self._groups}
        self._adamw = torch.optim.AdamW(others, weight_decay=0.0, betas=(0.9, 0.99), fused=others[0].is_cuda)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update all weights, and set their gradients to None."""
        for shape, parameters in self._groups.items():
            gradient = torch.stack([parameter.grad.flatten(1) for parameter in parameters])
            momentum = self._momenta[shape]
            if momentum.ndim == 0:
                momentum = self._momenta[shape] = torch.zeros_like(gradient)
            momentum.lerp_(gradient, 1 - MOMENTUM)
            update = orthogonalise(gradient.lerp_(momentum, MOMENTUM))
            update *= 0.2 * max(update.shape[1:]) ** 0.5
            for parameter, each in zip(parameters, update, strict=True):
                parameter.sub_(each.reshape(shape), alpha=rate)
                parameter.grad = None
        for group in self._adamw.param_groups:
            group["lr"] = 0.5 * rate
        self._adamw.step()
        self._adamw.zero_grad()


def orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """Move the singular values of matrices ``[count, rows, columns]`` to about 1, by five Newton-Schulz steps."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if is_tall else matrices).bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        gram = torch.baddbmm(gram, gram, gram, beta=-4.775, alpha=2.0315)
        x = torch.baddbmm(x, gram, x, beta=3.4445)
    return (x.mT if is_tall else x).float()

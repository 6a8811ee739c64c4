"""Exported programs for ONNX: converted by paddle2onnx, run by onnxruntime. Both are optional, and for Paddle 2 alone.

paddle2onnx for Paddle 3 converts no UNet, merged or not. Merging is built from operators that convert: ``scatter``
with and without adding (``ScatterND``, opset 16), ``gather``, ``argsort`` and whole-number arithmetic; ``index_add``
would not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ppdiffusers_tome.export.programs import num_threads

OPSET = 16


@dataclass(frozen=True)
class Onnx:
    """A program for ONNX.

    Attributes:
        path: of the program, without its ending.
    """

    path: Path

    @property
    def file(self) -> Path:
        return self.path.with_name(f"{self.path.name}.onnx")

    def convert(self) -> None:
        """Write ``file`` from the program that Paddle 2 wrote beside it."""
        import paddle2onnx

        program, weights = (self.path.with_name(f"{self.path.name}{end}") for end in (".pdmodel", ".pdiparams"))
        with _no_standard_output():
            paddle2onnx.export(str(program), str(weights), str(self.file), opset_version=OPSET)

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Its first output, from onnxruntime on the CPU."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads()
        session = onnxruntime.InferenceSession(str(self.file), options, providers=["CPUExecutionProvider"])
        return session.run(None, inputs)[0]


@contextmanager
def norms_on_pictures(model: Any) -> Iterator[None]:
    """For as long as this lasts, the norm of a VAE's attention gets ``[batch, channels, tokens, 1]``.

    It gets three axes otherwise, and paddle2onnx 1.3 takes the last axis but two for the channels.
    """
    hooks = []
    for layer in model.sublayers():
        norm = getattr(layer, "group_norm", None)
        if norm is not None and hasattr(layer, "to_q"):
            hooks.append(norm.register_forward_pre_hook(lambda norm, inputs: inputs[0].unsqueeze(-1)))
            hooks.append(norm.register_forward_post_hook(lambda norm, inputs, output: output.squeeze(-1)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _no_standard_output() -> Iterator[None]:
    """Keep back what paddle2onnx's C++ prints there."""
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(nowhere)
        os.close(kept)

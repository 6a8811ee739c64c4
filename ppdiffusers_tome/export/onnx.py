"""Programs in ONNX, converted by paddle2onnx and run by onnxruntime.

Both packages are optional. paddle2onnx for Paddle 3 converts no UNet, merged or not, so this needs Paddle 2. All
operators of merging convert: ``scatter`` with and without adding (``ScatterND``, opset 16), ``gather``, ``argsort``
and integer arithmetic. ``index_add`` would not.
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
class OnnxProgram:
    """A program in ONNX beside the Paddle program that it comes from.

    Attributes:
        stem: the path of both programs without their suffix.
    """

    stem: Path

    @property
    def file(self) -> Path:
        """The path of the ONNX file."""
        return self.stem.with_name(f"{self.stem.name}.onnx")

    def convert(self) -> None:
        """Write ``file`` from the program that Paddle 2 wrote."""
        import paddle2onnx

        program, weights = (self.stem.with_name(f"{self.stem.name}{suffix}") for suffix in (".pdmodel", ".pdiparams"))
        with _discard_standard_output():
            paddle2onnx.export(str(program), str(weights), str(self.file), opset_version=OPSET)

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Return the first output, computed by onnxruntime on the CPU."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads()
        session = onnxruntime.InferenceSession(str(self.file), options, providers=["CPUExecutionProvider"])
        return session.run(None, inputs)[0]


@contextmanager
def use_image_layout_in_norms(vae: Any) -> Iterator[None]:
    """Give the norms of a VAE's attention inputs ``[batch, channels, tokens, 1]``.

    The usual three axes are wrong in ONNX: paddle2onnx 1.3 takes the third last axis for the channels.
    """
    hooks = []
    for layer in vae.sublayers():
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
def _discard_standard_output() -> Iterator[None]:
    """Discard what paddle2onnx's C++ code prints."""
    sys.stdout.flush()
    saved_descriptor = os.dup(1)
    null_descriptor = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null_descriptor, 1)
        yield
    finally:
        os.dup2(saved_descriptor, 1)
        os.close(null_descriptor)
        os.close(saved_descriptor)

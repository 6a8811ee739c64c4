"""Programs in ONNX, converted by paddle2onnx and run by onnxruntime, which are optional (``require_onnx``).

All operators of merging convert: ``scatter`` with and without adding (``ScatterND``, opset 16), ``gather``, ``argsort``
and integer arithmetic. ``index_add`` would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ppdiffusers_tome.export.programs import num_threads


def convert_to_onnx(program: Path) -> None:
    """Write a program of Paddle 2, named without suffix, in ONNX."""
    import paddle2onnx

    source, weights, target = (str(program.with_suffix(suffix)) for suffix in (".pdmodel", ".pdiparams", ".onnx"))
    paddle2onnx.export(source, weights, target, opset_version=16, verbose=False)


def run_onnx(file: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Return the first output of an ONNX file, computed on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


@contextmanager
def use_image_layout_in_norms(vae: Any) -> Iterator[None]:
    """Give the norms of a VAE's attention inputs ``[batch, channels, tokens, 1]``.

    paddle2onnx 1.3 takes the third last axis for the channels.
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

"""Helpers of tests: compiled models and their programs."""

from typing import Any

import tiny
from ppdiffusers_tome import compile_cpu
from ppdiffusers_tome.compilation.contents import COMPILED
from ppdiffusers_tome.compilation.model import CompiledModel


def compile_small_unet() -> Any:
    """Return the smallest UNet, compiled."""
    return compile_cpu(tiny.small_unet(), "float32")


def get_compiled(model: Any) -> CompiledModel:
    """Return what ``compile_cpu`` put on a model."""
    return vars(model)[COMPILED]


def list_programs(model: Any) -> list[Any]:
    """List a model's programs, the last used last."""
    return list(get_compiled(model)._programs.values())


def list_openvino_models(model: Any) -> list[Any]:
    """List what OpenVINO made of a model's programs."""
    return [program._request.get_compiled_model() for program in list_programs(model)]


def list_widths(model: Any) -> list[int]:
    """List the widths of the latents of a model's programs."""
    kinds = (kind for kind, merged in get_compiled(model)._programs)
    return [shape[-1] for precision, contents, arguments, stores_values, (shape, dtype), *_ in kinds]

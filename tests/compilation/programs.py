"""Helpers of tests: families of models that compile, compiled models and their programs."""

from collections.abc import Collection
from typing import Any

import pytest

import tiny
from ppdiffusers_tome import apply_tome, compile_cpu
from ppdiffusers_tome.compilation.contents import COMPILED
from ppdiffusers_tome.compilation.model import CompiledModel
from zoo import Specimen, specimens

USUAL = {"controlnet", "dit", "pixart", "sd3", "unet", "unet_unconditional", "unidiffuser", "uvit"}
# All that must compile; others are computed by Paddle.
COMPILING = USUAL | {
    "added_kv", "audio_diffusion", "audioldm", "audioldm2", "controlnet_sdxl", "gligen", "lvdm", "lvdm_unconditional",
    "prior_transformer", "sdxl", "st_unet", "t5_film", "unet_3d", "unet_consistency", "unet_motion",
    "unet_spatio_temporal", "upscaler", "versatile", "vid2vid_st_unet", "vq_diffusion",
}  # fmt: skip
FAMILIES = [each for each in specimens() if each.name in COMPILING and each.is_there]


def build_pair(specimen: Specimen) -> tuple[Any, Any]:
    """Build a model twice, merged where it can be, to compile the second."""
    plain, model = specimen.build(), specimen.build()
    if specimen.reason is None:
        apply_tome(plain, ratio=0.5)
        apply_tome(model, ratio=0.5)
    if specimen.name.endswith("st_unet"):
        specimen.run(model)  # which sets its batch, as a program would not do
    return plain, model


def list_families(fast: Collection[str]) -> list[Any]:
    """List what compiles, the others for sweeps."""
    return [pytest.param(each, id=each.name, marks=() if each.name in fast else pytest.mark.sweep) for each in FAMILIES]


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

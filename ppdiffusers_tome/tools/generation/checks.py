"""Checks of settings: arguments, the device, and what a loaded pipeline takes.

Imports no Paddle, so that what is mistyped is refused before the seconds that it takes.
"""

from __future__ import annotations

import argparse
import inspect
import math
import zlib
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.machine import AUTO, choose_float_precision, explain_missing_precision, has_precision
from ppdiffusers_tome.settings.config import UNMERGED
from ppdiffusers_tome.tools.edges import read_photo_file
from ppdiffusers_tome.tools.generation.models import ModelSource, find_controlnet, find_model
from ppdiffusers_tome.tools.generation.prompts import DIT_PIPELINE, check_text
from ppdiffusers_tome.tools.generation.settings import MAX_SEED, SCHEDULERS, SIZE_MULTIPLE, ImageSettings
from ppdiffusers_tome.tools.measure.system import has_only_cpu

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline

_NO_CLASS = 1000  # which a DiTPipeline takes for "no class" in guidance, however many classes its model has


def parse_settings(args: argparse.Namespace, *, provides_edges: bool = False) -> ImageSettings:
    """Check the arguments, alone and together, and return settings without merging.

    With ``provides_edges`` the command has edges of its own, so a ControlNet needs no ``--image``.
    """
    for name in ("height", "width"):
        pixels = getattr(args, name)
        if pixels is not None and (pixels <= 0 or pixels % SIZE_MULTIPLE):
            nearest = max(SIZE_MULTIPLE, round(pixels / SIZE_MULTIPLE) * SIZE_MULTIPLE)
            raise UserError(f"--{name} {pixels} must be a multiple of {SIZE_MULTIPLE} above 0, such as {nearest}")
    model = find_model(args.model)
    steps = model.steps if args.steps is None else args.steps
    if steps < 1:
        raise UserError(f"--steps {steps} must be 1 or more; 20 is usual")
    check_seed("--seed", args.seed)
    guidance_scale = model.guidance_scale if args.guidance_scale is None else args.guidance_scale
    if args.negative_prompt is not None:
        check_text("--negative-prompt", args.negative_prompt)
    for name, scale, usual in (
        ("--controlnet-scale", args.controlnet_scale, "1"), ("--guidance-scale", guidance_scale, "7.5"),
    ):  # fmt: skip
        if scale is not None and not (math.isfinite(scale) and scale >= 0):
            raise UserError(f"{name} {scale} must be a finite number, 0 or more; {usual} is usual")
    controlnet = _parse_controlnet(args, model, provides_edges)
    if args.image is not None:
        read_photo_file(args.image)  # or it would fail after the model was loaded
    settings = ImageSettings(
        model=model, controlnet=controlnet, photo=args.image, tome=UNMERGED,
        photo_checksum=None if args.image is None else zlib.crc32(args.image.read_bytes()),
        height=args.height, width=args.width, steps=steps, guidance_scale=guidance_scale,
        scheduler=SCHEDULERS.get(args.scheduler), seed=args.seed, negative_prompt=args.negative_prompt,
        dtype=args.dtype, xformers=args.xformers,
        compile=choose_float_precision() if args.compile == AUTO else args.compile,
        controlnet_scale=1.0 if args.controlnet_scale is None else args.controlnet_scale,
    )  # fmt: skip
    check_device(settings, "cpu" if has_only_cpu() else None)
    return settings


def _parse_controlnet(args: argparse.Namespace, model: ModelSource, provides_edges: bool) -> ModelSource | None:
    """Return the named ControlNet, or the model's own where edges guide."""
    if args.image is None and not provides_edges:
        for option, value in (("--controlnet", args.controlnet), ("--controlnet-scale", args.controlnet_scale)):
            if value is not None:
                raise UserError(f"{option} needs the edges of a photo; give one with --image")
        return None
    name = model.controlnet if args.controlnet is None else args.controlnet
    if name is None and args.image is not None:
        raise UserError(
            "--image needs a ControlNet that fits the model; name one with --controlnet, which takes a pipeline of "
            "Stable Diffusion or SDXL and no other, such as a DiTPipeline"
        )
    return None if name is None else find_controlnet(name)


def check_seed(name: str, seed: int) -> None:
    """Check that Paddle and numpy take a seed; errors call it ``name``."""
    if not 0 <= seed <= MAX_SEED:
        raise UserError(f"{name} {seed} must be from 0 to 2**62")


def check_device(settings: ImageSettings, device: str | None) -> None:
    """Refuse what a device cannot do; ``device`` is None while unknown."""
    dtype = settings.dtype
    if settings.compile is not None and (device not in (None, "cpu") or dtype != "float32"):
        here = "" if device is None else f" on {device}"
        remedy = "--compile" if dtype == "float32" else "--dtype: --compile chooses the precision"
        raise UserError(f"--compile is for float32 on a CPU, and this is {dtype}{here}; omit {remedy}")
    if device == "cpu" and (settings.xformers or dtype != "float32"):
        raise UserError(
            f"{'--xformers' if settings.xformers else f'--dtype {dtype}'} needs a GPU: Paddle's CPU has no kernels for "
            "it; omit it, or use a GPU with paddlepaddle-gpu"
        )
    if settings.compile is not None and find_spec("openvino") is None:
        raise UserError("--compile needs openvino, which is not installed: pip install 'openvino>=2026.4,<2027'")
    if settings.compile is not None and not has_precision(settings.compile):
        raise UserError(f"--compile {explain_missing_precision(settings.compile)}")


def check_loaded(loaded: LoadedPipeline) -> None:
    """Refuse settings that a loaded pipeline does not take."""
    class_name, guidance = type(loaded.pipe).__name__, loaded.guidance_scale
    if loaded.settings.negative_prompt is not None:
        if "negative_prompt" not in inspect.signature(loaded.pipe.__call__).parameters:
            raise UserError(f"--negative-prompt has no effect in a {class_name}; omit it")
        if guidance <= 1:
            raise UserError(
                f"--negative-prompt has no effect at guidance scale {guidance:g}; give a --guidance-scale above 1, or "
                "omit it"
            )
    if loaded.labels is None:
        return
    for name, pixels, only in zip(("height", "width"), loaded.size, loaded.native_size, strict=True):
        if pixels != only:
            raise UserError(f"{name} {pixels} is not the size of this {class_name}, {only}x{only} pixels; omit it")
    if guidance > 1 and loaded.labels.num_classes != _NO_CLASS:
        raise UserError(
            f"guidance scale {guidance:g}: a {DIT_PIPELINE} guides with class {_NO_CLASS} as none, which is so with "
            f"{_NO_CLASS} classes alone, and this model has {loaded.labels.num_classes}; give 1 (no guidance)"
        )

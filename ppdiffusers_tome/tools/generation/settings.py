"""What the arguments mean together, checked before anything is loaded.

Knows no Paddle: whatever can be said about the arguments is said within the first second.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, fields
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.overrides import apply_overrides
from ppdiffusers_tome.settings.types import UNSET
from ppdiffusers_tome.tools.generation.class_labels import ClassLabels
from ppdiffusers_tome.tools.generation.edges import EdgeSource
from ppdiffusers_tome.tools.generation.memory import MemoryNeeds, check_memory
from ppdiffusers_tome.tools.generation.model_sources import BUNDLED, ModelSource, find_controlnet, find_model

MAX_SEED = 2**62
SIZE_MULTIPLE = 8
NEEDS_CONTROLNET = (  # where edges were given and no ControlNet is known: half a sentence
    "needs a ControlNet that fits the model; name one with --controlnet, which takes a pipeline of Stable Diffusion or "
    "SDXL and no other, such as a DiTPipeline"
)


@dataclass(frozen=True)
class Settings:
    """Everything a picture depends on apart from its prompt.

    Attributes:
        model, controlnet: where they come from; ``controlnet`` is None for text-to-image.
        edges: where the ControlNet's edges come from; None for text-to-image, or when the command
            takes a photograph of its own.
        tome: settings of token merging; ratio 0 stands for the unmerged pipeline.
        height, width: in pixels; None means the model's native size.
        steps, scheduler, seed, negative_prompt, controlnet_scale: as in ppdiffusers' pipelines.
        guidance_scale: the same; None for what is usual of a pipeline that a hub knows, and which is told once it is
            loaded.
        dtype: ``float32``, ``float16`` or ``bfloat16``.
        xformers: use memory efficient attention.
        chunked_attention: compute attention a few queries at a time.
    """

    model: ModelSource
    controlnet: ModelSource | None
    edges: EdgeSource | None
    tome: ToMeConfig
    height: int | None
    width: int | None
    steps: int
    guidance_scale: float | None
    scheduler: str | None
    seed: int
    negative_prompt: str | None
    controlnet_scale: float
    dtype: str
    xformers: bool
    chunked_attention: bool


def parse_settings(args: argparse.Namespace, ratio: float | None, *, provides_edges: bool = False) -> Settings:
    """Check the arguments, alone and together.

    Args:
        args: with the arguments of ``arguments``.
        ratio: share of the tokens to merge; None for that of ``--config``, or the default.
        provides_edges: True when the command draws edges of its own where a ControlNet is given without any.

    Raises:
        UserError, ToMeValueError: something cannot be used; the message says what and what to do.
    """
    check_sizes(args)
    model = find_model(args.model, class_labels=True)
    steps = args.steps if args.steps is not None else (10 if model.bundled else 20)
    guidance_scale = args.guidance_scale
    if guidance_scale is None and model.folder is not None:
        guidance_scale = choose_guidance_scale(model, model.labels)
    if steps < 1:
        raise UserError(f"--steps {steps} must be 1 or more; 20 is usual")
    check_seed("--seed", args.seed)
    if guidance_scale is not None:
        _check_scale("--guidance-scale", guidance_scale, "7.5")
    _check_scale("--controlnet-scale", args.controlnet_scale, "1")
    if args.xformers and args.chunked_attention:
        raise UserError(
            "--xformers and --chunked-attention were both given; give --xformers on a GPU, --chunked-attention on a CPU"
        )
    if model.labels is not None:
        names = ("negative_prompt", "controlnet", "image", "control_image")
        options = {f"--{name.replace('_', '-')}": getattr(args, name) for name in names}
        model.labels.check_arguments(options, args.height, args.width, guidance_scale)  # never None: it has a folder
    controlnet, edges = _control(args, model, provides_edges)
    settings = Settings(
        model=model, controlnet=controlnet, edges=edges, tome=parse_tome_config(args, ratio), height=args.height,
        width=args.width, steps=steps, guidance_scale=guidance_scale, scheduler=args.scheduler, seed=args.seed,
        negative_prompt=args.negative_prompt, controlnet_scale=args.controlnet_scale, dtype=args.dtype,
        xformers=args.xformers, chunked_attention=args.chunked_attention,
    )  # fmt: skip
    check_memory(get_memory_needs(settings), settings.height, settings.width)
    return settings


def get_memory_needs(settings: Settings) -> MemoryNeeds:
    """What the memory of pictures with these settings depends on."""
    rows = 1 if settings.guidance_scale is not None and settings.guidance_scale <= 1 else 2
    return MemoryNeeds(settings.model, settings.tome, rows, settings.chunked_attention or settings.xformers)


def choose_guidance_scale(model: ModelSource, labels: ClassLabels | None) -> float:
    """The guidance scale where none is given; ``labels`` are what the pipeline draws in place of prompts, or None."""
    if model.bundled:
        return 1.5  # with more, the few photographs that they know get harder and darker
    return 7.5 if labels is None else 4.0  # as the pipelines themselves


def check_prompts(prompts: list[str] | None) -> list[str]:
    """At least one prompt, none of them blank."""
    if not prompts:
        raise UserError("there is no prompt; give one with --prompt 'a photo of a cat'")
    for prompt in prompts:
        if not prompt.strip():
            raise UserError(f"--prompt {prompt!r} is empty; say what to draw")
    return prompts


def parse_tome_config(args: argparse.Namespace, ratio: float | None) -> ToMeConfig:
    """The settings of token merging that the arguments name.

    Args:
        args: with those of ``add_tome_arguments``, or without; what was not given is ``UNSET``.
        ratio: None for that of ``--config``, or the default.
    """
    given = get_tome_overrides(args)
    return apply_overrides(getattr(args, "config", None), given if ratio is None else {**given, "ratio": ratio})


def get_tome_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of token merging that were given as options of ``add_tome_arguments``, by name."""
    names = [field.name for field in fields(ToMeConfig) if field.name not in ("ratio", "seed")]
    given = {name: getattr(args, name, UNSET) for name in names}
    given |= {"seed": getattr(args, "tome_seed", UNSET)}  # --seed is the picture's
    return {name: value for name, value in given.items() if value is not UNSET}


def _control(
    args: argparse.Namespace, model: ModelSource, provides_edges: bool
) -> tuple[ModelSource | None, EdgeSource | None]:
    """The ControlNet and its edges, or neither."""
    if args.image is not None and args.control_image is not None:
        raise UserError("--image and --control-image were both given; give the photo or its edges, not both")
    option, path = ("--image", args.image) if args.image is not None else ("--control-image", args.control_image)
    if path is None:
        if args.controlnet is None:
            return None, None
        if not provides_edges:
            raise UserError("--controlnet needs edges; give a photo with --image, or edges with --control-image")
        return find_controlnet(args.controlnet), None
    if args.controlnet is None and not model.bundled:
        raise UserError(f"{option} {NEEDS_CONTROLNET}")
    edges = EdgeSource(path, option, args.canny_low, args.canny_high, args.fit)
    edges.check()
    return find_controlnet(args.controlnet or BUNDLED), edges


def check_sizes(args: argparse.Namespace) -> None:
    """``--height`` and ``--width`` are such as a VAE can make."""
    for name in ("height", "width"):
        check_size(name, getattr(args, name))


def check_size(name: str, pixels: int | None, *, prefix: str = "--") -> None:
    """A height or width is one that a VAE can make; it was given as ``prefix`` and ``name``."""
    if pixels is not None and (pixels <= 0 or pixels % SIZE_MULTIPLE):
        nearest = max(SIZE_MULTIPLE, round(pixels / SIZE_MULTIPLE) * SIZE_MULTIPLE)
        raise UserError(f"{prefix}{name} {pixels} must be a multiple of {SIZE_MULTIPLE} above 0, such as {nearest}")


def check_seed(name: str, seed: int) -> None:
    """A seed is one that Paddle and numpy take; ``name`` is what it was given as."""
    if not 0 <= seed <= MAX_SEED:
        raise UserError(f"{name} {seed} must be from 0 to 2**62")


def _check_scale(option: str, value: float, usual: str) -> None:
    if not math.isfinite(value) or value < 0:
        raise UserError(f"{option} {value} must be a finite number, 0 or more; {usual} is usual")

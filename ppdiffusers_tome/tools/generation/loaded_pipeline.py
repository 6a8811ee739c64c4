"""A loaded pipeline with its settings: where all commands that draw get their pictures from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.cli.console.output import warn
from ppdiffusers_tome.tools.generation.device import check_device
from ppdiffusers_tome.tools.generation.results import GeneratedImage
from ppdiffusers_tome.tools.generation.settings import Settings, choose_guidance_scale

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.patching.recorder import MergeRecord
    from ppdiffusers_tome.settings.config import Ratio, ToMeConfig
    from ppdiffusers_tome.tools.generation.class_labels import ClassLabels
    from ppdiffusers_tome.tools.generation.edges import EdgeSource
    from ppdiffusers_tome.tools.generation.model_sources import ModelSource

_SHOWN = 60  # characters of a prompt in a warning


@dataclass(frozen=True)
class LoadedPipeline:
    """A pipeline, ready to draw.

    Attributes:
        pipe: the ppdiffusers pipeline, without ToMe until ``apply`` or ``apply_ratio``.
        settings: what it was loaded with.
        height, width: of its pictures, in pixels.
        guidance_scale: of its pictures, as in ppdiffusers.
        labels: what it draws in place of prompts; None where it takes prompts.
    """

    pipe: Any
    settings: Settings
    height: int
    width: int
    guidance_scale: float
    labels: ClassLabels | None = None

    def apply_ratio(self, ratio: Ratio) -> None:
        """Apply ToMe with a ratio and the settings; 0 takes it off."""
        self.apply(replace(self.settings.tome, ratio=ratio) if ratio != 0 else None)

    def apply(self, tome: ToMeConfig | None) -> None:
        """Apply ToMe with other settings; None takes it off."""
        from ppdiffusers_tome.api import apply_tome
        from ppdiffusers_tome.patching.apply import remove_tome

        if tome is None:
            remove_tome(self.pipe)
        else:
            apply_tome(self.pipe, tome)

    def count_calls(self) -> int:
        """How often the denoiser is called for a picture; Heun's scheduler, for one, does it twice a step."""
        self.pipe.scheduler.set_timesteps(self.settings.steps)
        return len(self.pipe.scheduler.timesteps)

    def generate_traced(
        self, prompt: str, number: int, edges: Image.Image | None, *, after_call: Callable[[], None] = lambda: None
    ) -> tuple[GeneratedImage, list[MergeRecord]]:
        """The same as ``generate``, and how its tokens merged; ToMe must be applied. Its seconds hold the watching."""
        from ppdiffusers_tome.patching.recorder import record_merging

        # The prompted one of the two halves with guidance, which stands first in a DiTPipeline, elsewhere last.
        with record_merging(self.pipe, image=-1 if self.labels is None else 0) as records:
            drawn = self.generate(prompt, number, edges, after_call=after_call)
        return drawn, records

    def generate(
        self, prompt: str, number: int, edges: Image.Image | None, *, steps: int | None = None,
        after_call: Callable[[], None] = lambda: None,
    ) -> GeneratedImage:  # fmt: skip
        """Draw picture ``number`` (from 0), which has the seed of the settings plus that number, and measure it.

        Args:
            prompt: what to draw, or of a DiTPipeline a class.
            number: of the picture.
            edges: what guides a ControlNet; None where there is none.
            steps: in place of the settings'.
            after_call: called whenever the denoiser was called; what it raises ends the picture.
        """
        from ppdiffusers_tome.tools.generation.sampling import generate_image
        from ppdiffusers_tome.tools.measure.memory import Meter

        settings, peaks, meter = self.settings, [], Meter()

        def step_ended() -> None:
            peaks.append(meter.peak_bytes())
            after_call()

        picture = generate_image(
            self.pipe, prompt, after_step=step_ended, height=self.height, width=self.width,
            seed=settings.seed + number, steps=steps or settings.steps, guidance_scale=self.guidance_scale,
            negative_prompt=settings.negative_prompt, edges=edges, controlnet_scale=settings.controlnet_scale,
        )  # fmt: skip
        return GeneratedImage(picture, meter.seconds(), meter.peak_bytes(), peaks[-1] if peaks else None)

    @property
    def size_warning(self) -> str | None:
        """In words, that its pictures are too small for the model; None where they are not, or it is not known."""
        return describe_unusual_size(self.settings.model, self.pipe, self.height, self.width)

    def load_edges(self, source: EdgeSource, *, report_fit: bool = True) -> Image.Image:
        """Edges at the size of the pictures; warns where there are none, and says how another shape was made to fit."""
        edges = source.load(self.height, self.width)
        if report_fit and (fitting := source.describe_fit(self.height, self.width)):
            warn(fitting)
        if edges.getextrema() == ((0, 0),) * 3:
            warn(source.describe_missing_edges(self.height, self.width))
        return edges

    def describe(self, prompt: str, number: int, ratio: Ratio) -> dict[str, Any]:
        """All that a picture was made with, as plain values; the same for the same picture, so nothing measured."""
        tome = replace(self.settings.tome, ratio=ratio).to_dict()
        return {
            "prompt": prompt, "negative_prompt": self.settings.negative_prompt, "seed": self.settings.seed + number,
            "ratio": tome["ratio"], "tome": tome if ratio != 0 else None, **self.describe_run(),
        }  # fmt: skip

    def describe_run(self) -> dict[str, Any]:
        """What all pictures of this pipeline have in common."""
        settings, control = self.settings, None
        if settings.controlnet is not None:
            edges = None if settings.edges is None else settings.edges.to_dict()
            control = {"model": settings.controlnet.name, "scale": settings.controlnet_scale, "edges": edges}
        return {
            "model": settings.model.name, "controlnet": control, "height": self.height, "width": self.width,
            "steps": settings.steps, "guidance_scale": self.guidance_scale,
            "scheduler": type(self.pipe.scheduler).__name__, "dtype": settings.dtype, "xformers": settings.xformers,
            "chunked_attention": settings.chunked_attention, "versions": _versions(),
        }  # fmt: skip


def load_for_prompts(
    settings: Settings, prompts: list[str], *, default: bool = False
) -> tuple[LoadedPipeline, list[str]]:
    """Load what the settings name, and warn of prompts it cannot read whole and of pictures too small for it.

    Args:
        settings: name it.
        prompts: what it is to draw.
        default: whether nobody asked for them; a pipeline that takes classes draws as many of its own then.

    Returns:
        The pipeline and its prompts: of one from a hub only now is it known whether they are classes.

    Raises:
        UserError: it cannot be loaded, this device cannot run it, or a prompt names no class of it.
    """
    from ppdiffusers_tome.tools.generation.class_labels import select_prompts

    loaded = load_from_settings(settings)
    prompts = select_prompts(loaded.labels, None if default else prompts, prompts)
    if loaded.labels is not None:
        options = {"--negative-prompt": settings.negative_prompt}
        loaded.labels.check_arguments(options, settings.height, settings.width, loaded.guidance_scale)
        return loaded, prompts
    for prompt in [*prompts, settings.negative_prompt or ""]:
        if complaint := describe_truncation(loaded.pipe, prompt):
            warn(f"prompt {prompt[:40]!r}... {complaint}; the rest is ignored")
    for odd in (*(describe_unknown_subject(settings, prompt) for prompt in prompts), loaded.size_warning):
        if odd is not None:
            warn(odd)
    return loaded, prompts


def load_from_settings(settings: Settings) -> LoadedPipeline:
    """Load what the settings name; nothing is said of prompts and sizes.

    Raises:
        UserError: it cannot be loaded, or this device cannot run it.
    """
    from ppdiffusers_tome.cpu.chunked_attention import enable_chunked_attention
    from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
    from ppdiffusers_tome.tools.generation.sampling import get_class_labels, get_native_size
    from ppdiffusers_tome.tools.generation.schedulers import make_scheduler, scales_latents

    check_device(settings.dtype, xformers=settings.xformers)
    pipe = load_pipeline(settings.model, settings.controlnet, dtype=settings.dtype, class_labels=True)
    if settings.scheduler is not None:
        pipe.scheduler = make_scheduler(settings.scheduler, pipe.scheduler.config)
    if settings.xformers:
        pipe.enable_xformers_memory_efficient_attention()
    if settings.chunked_attention:
        enable_chunked_attention(pipe)
    pipe.set_progress_bar_config(desc="steps", position=1, leave=False, disable=None, file=sys.stderr)
    labels = settings.model.labels or get_class_labels(pipe)  # of a hub's pipeline nobody knew them until now
    if labels is not None and scales_latents(pipe.scheduler):
        raise UserError(
            f"{type(pipe.scheduler).__name__} scales the latents that the model is given, and ppdiffusers' DiTPipeline "
            "would continue with the scaled ones; give --scheduler ddim, dpmsolver++ or pndm"
        )
    height, width = get_native_size(pipe)
    guidance_scale = settings.guidance_scale
    if guidance_scale is None:
        guidance_scale = choose_guidance_scale(settings.model, labels)
    return LoadedPipeline(pipe, settings, settings.height or height, settings.width or width, guidance_scale, labels)


def describe_truncation(pipe: Any, prompt: str | None) -> str | None:
    """In words, how much longer a prompt is than the text encoder reads; None where it is not, or there is none."""
    limit = pipe.tokenizer.model_max_length
    count = 0 if prompt is None else len(pipe.tokenizer(prompt).input_ids)
    return f"has {count} tokens and the model reads {limit}" if count > limit else None


def describe_unknown_subject(settings: Settings, prompt: str) -> str | None:
    """In words, that a prompt names nothing the bundled model draws; None where it does, or of another model."""
    from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS, prompt_of, subject_of

    if not settings.model.bundled or subject_of(prompt) is not None:
        return None
    shown = prompt if len(prompt) <= _SHOWN else f"{prompt[:_SHOWN]}..."
    return (
        f"prompt {shown!r} names none of the photographs that the bundled model draws: "
        f"{', '.join(subject.words for subject in SUBJECTS)}; write for instance '{prompt_of(SUBJECTS[0])}'"
    )


def describe_unusual_size(model: ModelSource, pipe: Any, height: int, width: int) -> str | None:
    """In words, that the bundled model was not made for pictures of this size; None where it was, or of another model.

    It knows places by how far the border is, so in larger pictures parts are missing or stretched, as in smaller ones.
    """
    from ppdiffusers_tome.tools.generation.sampling import get_native_size

    native = get_native_size(pipe)
    if not model.bundled or (height, width) == tuple(native):
        return None
    return (
        f"at {width}x{height} the bundled model draws smears: it was made for {native[1]}x{native[0]}; leave out "
        "--height and --width"
    )


def _versions() -> dict[str, str]:
    import paddle
    import ppdiffusers

    from ppdiffusers_tome.version import __version__

    return {"ppdiffusers_tome": __version__, "ppdiffusers": ppdiffusers.__version__, "paddle": paddle.__version__}

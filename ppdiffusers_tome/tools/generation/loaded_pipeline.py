"""A loaded pipeline with its settings, from which all commands get their images."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.settings.types import truncated_repr
from ppdiffusers_tome.tools.console.output import warn
from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS, prompt_of, subject_of
from ppdiffusers_tome.tools.generation.class_labels import select_prompts
from ppdiffusers_tome.tools.generation.device import check_device
from ppdiffusers_tome.tools.generation.results import GeneratedImage
from ppdiffusers_tome.tools.generation.settings import Settings, choose_guidance_scale

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.patching.recorder import MergeRecord
    from ppdiffusers_tome.settings.config import Ratio, ToMeConfig
    from ppdiffusers_tome.tools.generation.class_labels import ClassLabels
    from ppdiffusers_tome.tools.generation.edges import EdgeSource


@dataclass(frozen=True)
class LoadedPipeline:
    """A pipeline, ready to generate.

    Attributes:
        pipe: the ppdiffusers pipeline, without ToMe until ``apply`` or ``apply_ratio``.
        settings: what it was loaded with.
        height, width: of its images, in pixels.
        guidance_scale: as in ppdiffusers.
        labels: its classes; None for a pipeline with prompts.
    """

    pipe: Any
    settings: Settings
    height: int
    width: int
    guidance_scale: float
    labels: ClassLabels | None = None

    def apply_ratio(self, ratio: Ratio) -> None:
        """Apply ToMe with a ratio and the settings; 0 removes it."""
        self.apply(replace(self.settings.tome, ratio=ratio) if ratio != 0 else None)

    def apply(self, tome: ToMeConfig | None) -> None:
        """Apply ToMe with other settings; None removes it."""
        from ppdiffusers_tome.api import apply_tome, remove_tome

        if tome is None:
            remove_tome(self.pipe)
        else:
            apply_tome(self.pipe, tome)

    def count_calls(self) -> int:
        """Count the denoiser's calls for an image; Heun's scheduler makes two per step."""
        self.pipe.scheduler.set_timesteps(self.settings.steps)
        return len(self.pipe.scheduler.timesteps)

    def generate(
        self, prompt: str, number: int, edges: Image.Image | None, *, steps: int | None = None,
        after_call: Callable[[], None] = lambda: None,
    ) -> GeneratedImage:  # fmt: skip
        """Generate and measure an image.

        Args:
            prompt: or a class of a DiTPipeline.
            number: of the image, from 0; it is added to the seed of the settings.
            edges: to guide a ControlNet; or None.
            steps: instead of those of the settings.
            after_call: called after each call of the denoiser; what it raises ends the image.
        """
        from ppdiffusers_tome.tools.generation.sampling import generate_image
        from ppdiffusers_tome.tools.measure.memory import Meter

        settings, peaks, meter = self.settings, [], Meter()

        def end_step() -> None:
            peaks.append(meter.peak_bytes())
            after_call()

        image = generate_image(
            self.pipe, prompt, after_step=end_step, height=self.height, width=self.width, seed=settings.seed + number,
            steps=steps or settings.steps, guidance_scale=self.guidance_scale, edges=edges,
            negative_prompt=settings.negative_prompt, controlnet_scale=settings.controlnet_scale,
        )  # fmt: skip
        return GeneratedImage(image, meter.seconds(), meter.peak_bytes(), peaks[-1] if peaks else None)

    def generate_traced(
        self, prompt: str, number: int, edges: Image.Image | None, *, after_call: Callable[[], None] = lambda: None
    ) -> tuple[GeneratedImage, list[MergeRecord]]:
        """Generate an image and trace how its tokens merge; ToMe must be applied."""
        from ppdiffusers_tome.patching.recorder import record_merging

        # With guidance there are two halves: the one with the prompt is the first in a DiTPipeline, else the last.
        with record_merging(self.pipe, image=-1 if self.labels is None else 0) as records:
            image = self.generate(prompt, number, edges, after_call=after_call)
        return image, records

    def describe_truncation(self, prompt: str | None) -> str | None:
        """Describe how far a prompt exceeds the text encoder's limit, or return None."""
        limit = self.pipe.tokenizer.model_max_length
        count = 0 if prompt is None else len(self.pipe.tokenizer(prompt).input_ids)
        return f"has {count} tokens and the model reads {limit}" if count > limit else None

    def describe_oddities(self, prompt: str) -> dict[str, str]:
        """Describe what is odd about an image of a prompt, by names."""
        from ppdiffusers_tome.tools.generation.sampling import get_native_size

        if self.labels is not None:
            return {}
        truncation, found = self.describe_truncation(prompt), {}
        if truncation is not None:
            found["too_long"] = f"prompt {prompt[:40]!r}... {truncation}; the rest is ignored"
        if self.settings.model.bundled and subject_of(prompt) is None:
            found["unknown_subject"] = (
                f"prompt {truncated_repr(prompt)} names none of the photographs that the bundled model knows: "
                f"{', '.join(subject.words for subject in SUBJECTS)}; write for example '{prompt_of(SUBJECTS[0])}'"
            )
        height, width = get_native_size(self.pipe)
        if self.settings.model.bundled and (self.height, self.width) != (height, width):
            found["unusual_size"] = (
                f"at {self.width}x{self.height} the bundled model's images are smears: it was made for "
                f"{width}x{height}; omit --height and --width"
            )
        return found

    def load_edges(self, source: EdgeSource) -> Image.Image:
        """Load edges at the size of the images."""
        return source.load(self.height, self.width)

    def describe(self, prompt: str, number: int, ratio: Ratio) -> dict[str, Any]:
        """Return all that an image depends on as plain values, nothing measured."""
        tome = replace(self.settings.tome, ratio=ratio).to_dict()
        return {
            "prompt": prompt, "negative_prompt": self.settings.negative_prompt, "seed": self.settings.seed + number,
            "ratio": tome["ratio"], "tome": tome if ratio != 0 else None, **self.describe_run(),
        }  # fmt: skip

    def describe_run(self) -> dict[str, Any]:
        """Return what all images of this pipeline have in common."""
        import paddle
        import ppdiffusers

        from ppdiffusers_tome.version import __version__

        settings, control = self.settings, None
        versions = {
            "ppdiffusers_tome": __version__, "ppdiffusers": ppdiffusers.__version__, "paddle": paddle.__version__,
        }  # fmt: skip
        if settings.controlnet is not None:
            edges = None if settings.edges is None else settings.edges.to_dict()
            control = {"model": settings.controlnet.name, "scale": settings.controlnet_scale, "edges": edges}
        return {
            "model": settings.model.name, "controlnet": control, "height": self.height, "width": self.width,
            "steps": settings.steps, "guidance_scale": self.guidance_scale,
            "scheduler": type(self.pipe.scheduler).__name__, "dtype": settings.dtype, "xformers": settings.xformers,
            "chunked_attention": settings.chunked_attention, "versions": versions,
        }  # fmt: skip


def load_for_prompts(
    settings: Settings, prompts: list[str], *, default: bool = False
) -> tuple[LoadedPipeline, list[str]]:
    """Load a pipeline, with warnings about prompts and sizes that do not suit it.

    With ``default`` the user gave no prompts: as many classes replace them where the pipeline has classes.
    """
    loaded = load_from_settings(settings)
    prompts = select_prompts(loaded.labels, None if default else prompts, prompts)
    if loaded.labels is not None:
        options = {"--negative-prompt": settings.negative_prompt}
        loaded.labels.check_arguments(options, settings.height, settings.width, loaded.guidance_scale)
        return loaded, prompts
    if truncation := loaded.describe_truncation(settings.negative_prompt):
        warn(f"the negative prompt {truncation}; the rest is ignored")
    for warning in dict.fromkeys(text for prompt in prompts for text in loaded.describe_oddities(prompt).values()):
        warn(warning)
    return loaded, prompts


def load_from_settings(settings: Settings) -> LoadedPipeline:
    """Load a pipeline without any warnings about prompts and sizes."""
    from ppdiffusers_tome.tools.generation.model_loader import load_pipeline, set_attention
    from ppdiffusers_tome.tools.generation.sampling import get_class_labels, get_native_size
    from ppdiffusers_tome.tools.generation.schedulers import check_scheduler, make_scheduler

    check_device(settings.dtype, xformers=settings.xformers)
    pipe = load_pipeline(settings.model, settings.controlnet, dtype=settings.dtype, class_labels=True)
    labels = get_class_labels(pipe)
    if settings.scheduler is not None:
        pipe.scheduler = make_scheduler(settings.scheduler, pipe.scheduler.config)
    check_scheduler(pipe.scheduler, settings.steps, may_scale=labels is None)
    set_attention(pipe, xformers=settings.xformers, chunked=settings.chunked_attention)
    pipe.set_progress_bar_config(desc="steps", position=1, leave=False, disable=None, file=sys.stderr)
    height, width = get_native_size(pipe)
    guidance_scale = settings.guidance_scale
    if guidance_scale is None:
        guidance_scale = choose_guidance_scale(settings.model, takes_classes=labels is not None)
    return LoadedPipeline(pipe, settings, settings.height or height, settings.width or width, guidance_scale, labels)

"""A loaded pipeline, from which all commands get their images."""

import copy
import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image

from ppdiffusers_tome.api import apply_tome, get_tome, remove_tome
from ppdiffusers_tome.errors import UncompilableError, UserError
from ppdiffusers_tome.patching.apply import AppliedBlocks
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.text import format_count, shorten_repr
from ppdiffusers_tome.tools.generation.prompts import ClassLabels
from ppdiffusers_tome.tools.generation.sampling import check_scheduler, generate_image, get_labels, get_native_size
from ppdiffusers_tome.tools.generation.settings import ImageSettings
from ppdiffusers_tome.tools.measure.memory import limit_memory
from ppdiffusers_tome.tools.measure.meter import Meter
from ppdiffusers_tome.tools.measure.system import describe_versions


@dataclass(frozen=True)
class GeneratedImage:
    """An image and what it took."""

    image: Image.Image
    seconds: float  # of the whole call, with decoding
    peak_bytes: int | None  # with the weights; None if it could not be measured
    denoising_peak_bytes: int | None  # until the end of the last denoising step
    is_disturbed: bool = False  # by other programs, so that the seconds mislead


@dataclass(frozen=True)
class LoadedPipeline:
    """A pipeline, ready to generate."""

    pipe: Any  # without ToMe until ``apply``
    settings: ImageSettings  # of the next image; ``replace`` gives others, such as another seed
    edges: Image.Image | None = None  # which guide a ControlNet

    @property
    def labels(self) -> ClassLabels | None:
        """The classes of a DiTPipeline; None for a pipeline with prompts."""
        return get_labels(self.pipe)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of its images in pixels."""
        height, width = self.native_size
        return self.settings.height or height, self.settings.width or width

    @property
    def native_size(self) -> tuple[int, int]:
        """Height and width in pixels that its model was made for."""
        return get_native_size(self.pipe)

    @property
    def guidance_scale(self) -> float:
        """That of the settings, or else the default of the pipeline's class."""
        if self.settings.guidance_scale is not None:
            return self.settings.guidance_scale
        return float(inspect.signature(type(self.pipe).__call__).parameters["guidance_scale"].default)

    @property
    def used_settings(self) -> ImageSettings:
        """The settings, with what was left to the model filled in."""
        height, width = self.size
        scheduler = type(self.pipe.scheduler).__name__
        return replace(
            self.settings, height=height, width=width, guidance_scale=self.guidance_scale, scheduler=scheduler
        )

    @property
    def entries(self) -> tuple[AppliedBlocks, ...]:
        """The settings that are applied, and their blocks; none while unmerged."""
        applied = get_tome(self.pipe)
        return () if applied is None else applied.entries

    def describe_oddities(self, prompt: str) -> dict[str, str]:
        """Describe what may spoil an image of a prompt, by names."""
        if self.labels is not None:
            return {}
        settings, found = self.settings, dict[str, str]()
        texts = {"too_long": (f"prompt {prompt[:40]!r}...", prompt),
                 "negative_too_long": ("the negative prompt", settings.negative_prompt or "")}  # fmt: skip
        for name, (words, text) in texts.items():
            count, limit = len(self.pipe.tokenizer(text).input_ids), self.pipe.tokenizer.model_max_length
            if count > limit:
                found[name] = f"{words} has {count} tokens and the model reads {limit}; the rest is ignored"
        nouns = "|".join(re.escape(subject.split()[-1].lower()) for subject in settings.model.subjects)
        if nouns and not re.search(rf"\b({nouns})\b", prompt.lower()):
            found["unknown_subject"] = (
                f"prompt {shorten_repr(prompt)} names nothing that the model {settings.model.label} knows: "
                f"{', '.join(settings.model.subjects)}; write for example '{settings.model.prompts[0]}'"
            )
        (height, width), (native_height, native_width) = self.size, self.native_size
        if not (0.5 < height / native_height <= 2 and 0.5 < width / native_width <= 2):
            found["unusual_size"] = (
                f"at {width}x{height} images may be smears or repeat what they show: the model was made for "
                f"{native_width}x{native_height} pixels"
            )
        return found

    def apply(self, tome: ToMeConfig) -> None:
        """Apply settings; with those that change nothing the pipeline is unmerged."""
        if tome.changes_nothing:
            remove_tome(self.pipe)
        else:
            apply_tome(self.pipe, tome)

    def describe_merging(self) -> str:
        """Say what merges now, and what the last image skipped."""
        applied = get_tome(self.pipe)
        if applied is None:
            return "no token merging"
        skipped = [
            f"; {count} of {format_count(calls, 'call')} of {name} skipped"
            for name, (count, calls) in self.count_skipped_calls().items()
        ]
        return f"token merging: {applied}{''.join(skipped)}"

    def count_skipped_calls(self) -> dict[str, tuple[int, int]]:
        """Count skipped and all calls of each denoiser for the last image."""
        images = {each.denoiser: each.last_image for each in self.entries if each.last_image is not None}
        return {name: (each.num_skipped, each.num_skipped + each.num_computed) for name, each in images.items()}

    def count_calls(self) -> int:
        """Count the calls of the denoiser for an image."""
        scheduler = copy.deepcopy(self.pipe.scheduler)  # whose image may run
        scheduler.set_timesteps(self.settings.steps)
        return len(scheduler.timesteps)

    def warm_up(
        self, tome: ToMeConfig, prompt: str, seed: int, *, after_step: Callable[[], None] = lambda: None
    ) -> None:
        """Generate with one step or all, as a first image is slower."""
        steps = self.count_warm_up_steps(tome)
        if steps < self.settings.steps:
            tome = replace(tome, cache=0.0, start=0.0, end=1.0)  # these would warn in one step
        self.apply(tome)
        self.generate(prompt, seed, steps=steps, after_step=after_step)

    def count_warm_up_steps(self, tome: ToMeConfig) -> int:
        """Return 1, or all steps where one does not warm up."""
        if self.settings.compile == "int8" or (self.settings.compile is not None and tome.differs_by_step):
            # Computed and skipped steps are programs of their own, and so are last steps, which are not in 8 bits.
            return self.settings.steps
        with suppress(UserError):
            check_scheduler(self.pipe.scheduler, 1)
            return 1
        return self.settings.steps

    def generate(
        self, prompt: str, seed: int, *, steps: int | None = None, after_step: Callable[[], None] = lambda: None
    ) -> GeneratedImage:
        """Generate and measure an image.

        ``after_step`` is called after each call of the denoiser; what it raises ends the image.
        """
        peaks, meter, settings, (height, width) = [], Meter(), self.settings, self.size

        def read_peak() -> int | None:
            return meter.peak_bytes() if settings.compile is None else None  # OpenVINO's memory is not Paddle's

        def end_step() -> None:
            peaks.append(read_peak())
            after_step()

        try:
            with limit_memory():
                image = generate_image(
                    self.pipe, prompt, height=height, width=width, seed=seed,
                    steps=settings.steps if steps is None else steps, guidance_scale=self.guidance_scale,
                    negative_prompt=settings.negative_prompt, edges=self.edges,
                    controlnet_scale=settings.controlnet_scale, after_step=end_step,
                )  # fmt: skip
        except UncompilableError as error:
            remedy = "" if str(error).endswith("give float32") else "; omit --compile"
            raise UserError(f"--compile: {error}{remedy}") from error
        seconds, denoising_peak = meter.read_seconds(), peaks[-1] if peaks else None
        return GeneratedImage(image, seconds, read_peak(), denoising_peak, meter.is_disturbed())

    def describe_image(self, prompt: str, seed: int) -> dict[str, Any]:
        """Return all that an image depends on as plain values, nothing measured."""
        used = self.used_settings.describe_image(prompt, seed)
        return {**used, "versions": describe_versions(), "defaults": self.settings.defaults}

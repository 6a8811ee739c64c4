"""A loaded pipeline with its settings: where all commands that draw get their pictures from."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.console.output import no_ppdiffusers_warnings, warn
from ppdiffusers_tome.tools.drawing.device import check_device
from ppdiffusers_tome.tools.drawing.drawn import DrawnPicture
from ppdiffusers_tome.tools.drawing.settings import Settings

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.settings.config import Ratio, ToMeConfig
    from ppdiffusers_tome.tools.drawing.class_labels import ClassLabels
    from ppdiffusers_tome.tools.drawing.edges import EdgeSource


@dataclass(frozen=True)
class LoadedPipeline:
    """A pipeline, ready to draw.

    Attributes:
        pipe: the ppdiffusers pipeline, without ToMe until ``apply`` or ``apply_ratio``.
        settings: what it was loaded with.
        height, width: of its pictures, in pixels.
        labels: what it draws in place of prompts; None where it takes prompts.
    """

    pipe: Any
    settings: Settings
    height: int
    width: int
    labels: ClassLabels | None = None

    def apply_ratio(self, ratio: Ratio) -> None:
        """Apply ToMe with a ratio and the settings; 0 takes it off."""
        self.apply(replace(self.settings.tome, ratio=ratio) if ratio != 0 else None)

    def apply(self, tome: ToMeConfig | None) -> None:
        """Apply ToMe with other settings; None takes it off."""
        from ppdiffusers_tome.api import apply_tome
        from ppdiffusers_tome.attaching.applying import remove_tome

        if tome is None:
            remove_tome(self.pipe)
        else:
            apply_tome(self.pipe, tome)

    def draw(
        self, prompt: str, number: int, edges: Image.Image | None, *, steps: int | None = None
    ) -> DrawnPicture:
        """Draw picture ``number`` (from 0), which has the seed of the settings plus that number, and measure it."""
        from ppdiffusers_tome.tools.drawing.sampling import draw
        from ppdiffusers_tome.tools.measuring.measure import Meter

        settings, peaks, meter = self.settings, [], Meter()
        picture = draw(
            self.pipe, prompt, after_step=lambda: peaks.append(meter.peak_bytes()), height=self.height,
            width=self.width, seed=settings.seed + number, steps=steps or settings.steps,
            guidance_scale=settings.guidance_scale, negative_prompt=settings.negative_prompt, edges=edges,
            controlnet_scale=settings.controlnet_scale,
        )  # fmt: skip
        return DrawnPicture(picture, meter.seconds(), meter.peak_bytes(), peaks[-1] if peaks else None)

    def load_edges(self, source: EdgeSource) -> Image.Image:
        """Edges at the size of the pictures; warns where there are none."""
        edges = source.load(self.height, self.width)
        if edges.getextrema() == ((0, 0),) * 3:
            warn(f"{source.option} {source.path} gives no edges; lower --canny-low and --canny-high")
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
            edges = "drawn scene" if settings.edges is None else settings.edges.to_dict()
            control = {"model": settings.controlnet.name, "scale": settings.controlnet_scale, "edges": edges}
        return {
            "model": settings.model.name, "controlnet": control, "height": self.height, "width": self.width,
            "steps": settings.steps, "guidance_scale": settings.guidance_scale,
            "scheduler": type(self.pipe.scheduler).__name__, "dtype": settings.dtype, "xformers": settings.xformers,
            "chunked_attention": settings.chunked_attention, "versions": _versions(),
        }  # fmt: skip


def load_with_settings(settings: Settings, prompts: list[str]) -> LoadedPipeline:
    """Load what the settings name, and warn of prompts it cannot read whole.

    Raises:
        UserError: it cannot be loaded, or this device cannot run it.
    """
    from ppdiffusers_tome.cpu.chunked_attention import enable_chunked_attention
    from ppdiffusers_tome.tools.drawing.class_labels import asked_for
    from ppdiffusers_tome.tools.drawing.loading import load_pipeline
    from ppdiffusers_tome.tools.drawing.sampling import labels_of, native_size
    from ppdiffusers_tome.tools.drawing.schedulers import make_scheduler

    check_device(settings.dtype, xformers=settings.xformers)
    pipe = load_pipeline(settings.model, settings.controlnet, dtype=settings.dtype, class_labels=True)
    if settings.scheduler is not None:
        with no_ppdiffusers_warnings():  # it lists settings that the other scheduler has and this one has not
            pipe.scheduler = make_scheduler(settings.scheduler, pipe.scheduler.config)
    if settings.xformers:
        pipe.enable_xformers_memory_efficient_attention()
    if settings.chunked_attention:
        enable_chunked_attention(pipe)
    pipe.set_progress_bar_config(desc="steps", position=1, leave=False, disable=None, file=sys.stderr)
    labels = labels_of(pipe)
    if labels is None:
        _warn_of_prompts(pipe, settings, prompts)
    else:  # of a hub's pipeline nobody knew them until now
        options = {"--negative-prompt": settings.negative_prompt}
        labels.check(options, settings.height, settings.width, settings.guidance_scale)
        asked_for(labels, prompts, ())
    height, width = native_size(pipe)
    return LoadedPipeline(pipe, settings, settings.height or height, settings.width or width, labels)


def too_long(pipe: Any, prompt: str | None) -> str | None:
    """In words, how much longer a prompt is than the text encoder reads; None where it is not, or there is none."""
    limit = pipe.tokenizer.model_max_length
    count = 0 if prompt is None else len(pipe.tokenizer(prompt).input_ids)
    return f"has {count} tokens and the model reads {limit}" if count > limit else None


def _warn_of_prompts(pipe: Any, settings: Settings, prompts: list[str]) -> None:
    """Say which prompts are longer than the text encoder reads, and which the bundled model was not taught to read."""
    for prompt in [*prompts, settings.negative_prompt or ""]:
        if complaint := too_long(pipe, prompt):
            warn(f"prompt {prompt[:40]!r}... {complaint}; the rest is ignored")
    if settings.model.bundled:
        from ppdiffusers_tome.tools.bundled.scenes import parse_prompt

        for prompt in prompts:
            try:
                parse_prompt(prompt)
            except ValueError as error:
                warn(str(error))


def _versions() -> dict[str, str]:
    import paddle
    import ppdiffusers

    from ppdiffusers_tome.version import __version__

    return {"ppdiffusers_tome": __version__, "ppdiffusers": ppdiffusers.__version__, "paddle": paddle.__version__}

"""Drawing lines with the pipeline that they need."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.batches import Kind
from ppdiffusers_tome.tools.batch.line import Line
from ppdiffusers_tome.tools.cli.console.output import warn
from ppdiffusers_tome.tools.generation.edges import EdgeSource
from ppdiffusers_tome.tools.generation.loaded_pipeline import (
    LoadedPipeline,
    describe_truncation,
    describe_unknown_subject,
    load_from_settings,
)
from ppdiffusers_tome.tools.generation.memory import MemoryNeeds, check_memory
from ppdiffusers_tome.tools.generation.settings import Settings, get_memory_needs
from ppdiffusers_tome.tools.measure.clock import DeviceClock

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.tools.generation.class_labels import ClassLabels


@dataclass(frozen=True)
class EdgeSettings:
    """How lines that bring a picture of their own are guided by it; as in ``EdgeSource``."""

    low: float
    high: float
    fit: str

    def of(self, line: Line) -> EdgeSource:
        """Where the edges of a line come from that names a picture."""
        assert line.control is not None
        option = "--image" if line.image is not None else "--control-image"
        return EdgeSource(line.control, option, self.low, self.high, self.fit)


def check_without_model(settings: Settings, edges: EdgeSettings) -> Callable[[Line], None]:
    """What tells, before a model is loaded, that a line cannot be drawn.

    Its control image was cut off, its picture is too large, or a pipeline that draws classes has none of that name.

    What it gives raises a ``UserError``. At each picture file it looks once, however many lines name it, and computes
    none that need not be: one rank looks at all, and each computes its own before it draws.
    """
    check_end = lru_cache(maxsize=4096)(EdgeSource.check_end)
    labels, guidance_scale = settings.model.labels, settings.guidance_scale

    def check(line: Line) -> None:
        if labels is not None and guidance_scale is not None:
            check_class(labels, line, settings, guidance_scale)
        if line.height is not None or line.width is not None:
            height, width = line.height or settings.height, line.width or settings.width
            check_memory(_drawing(settings, line.ratio), height, width, prefix="")
        if line.control is not None:
            check_end(edges.of(line))

    return check


def check_class(labels: ClassLabels, line: Line, settings: Settings, guidance_scale: float) -> None:
    """Make sure that a pipeline which draws classes can draw a line.

    Raises:
        UserError: the line names no class, or asks for what only pipelines with prompts take.
    """
    negative_prompt = settings.negative_prompt if line.negative_prompt is None else line.negative_prompt
    options = {"negative_prompt": negative_prompt, "image": line.image, "control_image": line.control_image}
    labels.check_arguments(options, line.height or settings.height, line.width or settings.width, guidance_scale)
    labels.find_class(line.prompt)


def _drawing(settings: Settings, ratio: float | None) -> MemoryNeeds:
    drawing = get_memory_needs(settings)
    return drawing if ratio is None else replace(drawing, tome=replace(drawing.tome, ratio=ratio))


@dataclass
class LinePipeline:
    """A pipeline for a kind of line, loaded when a line asks for it; one is in memory at a time.

    Attributes:
        settings: of the command line, which lines may change for themselves.
        edges: for lines that bring a picture.
        image_root: the folder that a line's own picture must be in; None for any.
    """

    settings: Settings
    edges: EdgeSettings
    image_root: Path | None
    _loaded: LoadedPipeline | None = None
    _told: set[str] = field(default_factory=set)

    def load(self, kind: Kind) -> LoadedPipeline:
        """The pipeline that a kind of line needs."""
        controlled = kind.controlled and self.settings.controlnet is not None
        if self._loaded is None or (self._loaded.settings.controlnet is not None) != controlled:
            self._loaded = None
            self.free_memory()
            settings = self.settings if controlled else replace(self.settings, controlnet=None, edges=None)
            self._loaded = load_from_settings(settings)
        return replace(
            self._loaded, height=kind.height or self._loaded.height, width=kind.width or self._loaded.width
        )

    def labels(self) -> ClassLabels | None:
        """What it draws in place of prompts; for a pipeline of a hub it is loaded to tell."""
        model = self.settings.model
        if model.folder is not None or self.settings.controlnet is not None:
            return model.labels
        return self.load(Kind(False, None, None, None, False)).labels

    def check(self, kind: Kind, line: Line) -> None:
        """Find out whether a line can be drawn; what is odd about it and the first of its kind is told.

        Raises:
            UserError: its prompt is too long or names no class, it asks for what the pipeline cannot do, its control
                image is no picture, or the picture is too large.
        """
        loaded, negative_prompt = self.load(kind), self._negative_prompt(line)
        if loaded.labels is not None:
            check_class(loaded.labels, line, self.settings, loaded.guidance_scale)
            return
        for name, text in (("prompt", line.prompt), ("negative_prompt", negative_prompt)):
            if complaint := describe_truncation(loaded.pipe, text):
                raise UserError(f"{name} {complaint}; shorten it")
        fitting = None
        if kind.controlled:
            source = self._edges(line)
            source.check()
            fitting = source.describe_fit(loaded.height, loaded.width)
        self._tell("words", line, describe_unknown_subject(self.settings, line.prompt))
        self._tell("size", line, loaded.size_warning)
        self._tell("shape", line, fitting)

    def draw(self, kind: Kind, lines: Sequence[Line]) -> list[Image.Image]:
        """A picture for each line, all computed together."""
        from ppdiffusers_tome.tools.generation.sampling import generate_batch

        loaded, settings = self.load(kind), self.settings
        loaded.apply_ratio(self._ratio(kind))
        edges = None
        if kind.controlled:
            edges = [loaded.load_edges(self._edges(line), report_fit=False) for line in lines]
        negatives = [self._negative_prompt(line) or "" for line in lines] if kind.has_negative_prompt else None
        return generate_batch(
            loaded.pipe, [line.prompt for line in lines], height=loaded.height, width=loaded.width,
            seeds=[line.seed for line in lines], steps=settings.steps, guidance_scale=loaded.guidance_scale,
            negative_prompts=negatives, edges=edges, controlnet_scale=settings.controlnet_scale,
        )  # fmt: skip

    def describe(self, kind: Kind, line: Line) -> dict[str, Any]:
        """All that the line's picture is made with, as plain values."""
        loaded = self.load(kind)
        settings = replace(loaded.settings, seed=line.seed, negative_prompt=self._negative_prompt(line))
        if kind.controlled:
            settings = replace(settings, edges=self._edges(line))
        return replace(loaded, settings=settings).describe(line.prompt, 0, self._ratio(kind))

    def clock(self) -> DeviceClock:
        """One that begins now, when the device has done what it was given."""
        return DeviceClock()

    def free_memory(self) -> None:
        """Hand back memory that nothing uses any more."""
        import paddle

        gc.collect()
        if paddle.get_device().startswith("gpu"):
            paddle.device.cuda.empty_cache()

    def _ratio(self, kind: Kind) -> Any:
        return self.settings.tome.ratio if kind.ratio is None else kind.ratio

    def _negative_prompt(self, line: Line) -> str | None:
        return self.settings.negative_prompt if line.negative_prompt is None else line.negative_prompt

    def _edges(self, line: Line) -> EdgeSource:
        if line.control is None:
            assert self.settings.edges is not None
            return self.settings.edges
        line.check_control(self.image_root)  # once more: hours may have passed since the file of prompts was read
        return self.edges.of(line)

    def _tell(self, what: str, line: Line, odd: str | None) -> None:
        """Warn of what is odd about a line; of others like it no more."""
        if odd is not None and what not in self._told:
            self._told.add(what)
            warn(f"line {line.line}: {odd} (later lines may have the same fault and are not reported)")

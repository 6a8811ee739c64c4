"""Generating specs with the pipeline that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.options import BatchOptions
from ppdiffusers_tome.tools.batch.specs import ImageSpec
from ppdiffusers_tome.tools.console.output import warn
from ppdiffusers_tome.tools.generation.edges import EdgeSource
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline, load_from_settings
from ppdiffusers_tome.tools.generation.settings import Settings
from ppdiffusers_tome.tools.measure.out_of_memory import free_memory

if TYPE_CHECKING:
    from PIL import Image


@dataclass
class Generator:
    """Generates batches, with one pipeline in memory at a time."""

    options: BatchOptions
    settings: Settings
    _loaded: LoadedPipeline | None = None
    _whole_files: set[EdgeSource] = field(default_factory=set)
    _warned: set[str] = field(default_factory=set)

    def load(self, spec: ImageSpec) -> LoadedPipeline:
        """Return the pipeline that a spec needs, with its settings."""
        has_controlnet = spec.edges is not None and self.settings.controlnet is not None
        if self._loaded is None or (self._loaded.settings.controlnet is not None) != has_controlnet:
            self._loaded = None
            free_memory()
            settings = self.settings if has_controlnet else replace(self.settings, controlnet=None, edges=None)
            self._loaded = load_from_settings(settings)
        loaded = self._loaded
        settings = replace(loaded.settings, seed=spec.seed, negative_prompt=spec.negative_prompt, edges=spec.edges)
        height, width = spec.height or loaded.height, spec.width or loaded.width
        return replace(loaded, settings=settings, height=height, width=width)

    def check_early(self, spec: ImageSpec) -> None:
        """Raise a ``UserError`` for a spec that no loaded model is needed to refuse."""
        settings = self.settings
        if (spec.height, spec.width) != (settings.height, settings.width):
            tome = replace(settings.tome, ratio=self._get_ratio(spec))
            replace(settings, tome=tome).check_memory(spec.height, spec.width, prefix="")
        if spec.names_image and spec.edges is not None and spec.edges not in self._whole_files:
            spec.edges.check()
            self._whole_files.add(spec.edges)

    def check(self, spec: ImageSpec) -> None:
        """Raise a ``UserError`` if the model cannot generate a spec; warn of oddities once."""
        loaded = self.load(spec)
        self.check_early(spec)
        if loaded.labels is not None:
            given = {"negative_prompt": spec.negative_prompt}
            loaded.labels.check_arguments(given, spec.height, spec.width, loaded.guidance_scale)
            loaded.labels.find_class(spec.prompt)
            return
        for name, text in (("prompt", spec.prompt), ("negative_prompt", spec.negative_prompt)):
            if complaint := loaded.describe_truncation(text):
                raise UserError(f"{name} {complaint}; shorten it")
        for name, oddity in loaded.describe_oddities(spec.prompt).items():
            if name not in self._warned:
                self._warned.add(name)
                warn(f"line {spec.line}: {oddity} (later lines of which the same is true are not reported)")

    def generate(self, specs: Sequence[ImageSpec]) -> list[Image.Image]:
        """Generate the images of specs with the same ``batch_key`` together."""
        from ppdiffusers_tome.tools.generation.sampling import generate_batch

        settings, loaded = self.settings, self.load(specs[0])
        loaded.apply_ratio(self._get_ratio(specs[0]))
        negative_prompts = [spec.negative_prompt for spec in specs if spec.negative_prompt is not None]
        edges = [loaded.load_edges(spec.edges) for spec in specs if spec.edges is not None]
        return generate_batch(
            loaded.pipe, [spec.prompt for spec in specs], height=loaded.height, width=loaded.width,
            seeds=[spec.seed for spec in specs], steps=settings.steps, guidance_scale=loaded.guidance_scale,
            negative_prompts=negative_prompts or None, edges=edges or None, controlnet_scale=settings.controlnet_scale,
        )  # fmt: skip

    def describe(self, spec: ImageSpec) -> dict[str, Any]:
        """Return everything that a spec's image is generated with, as plain values."""
        return self.load(spec).describe(spec.prompt, 0, self._get_ratio(spec))

    def _get_ratio(self, spec: ImageSpec) -> Any:
        return self.settings.tome.ratio if spec.ratio is None else spec.ratio

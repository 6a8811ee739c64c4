"""Generating specs with the pipeline that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ppdiffusers_tome.tools.batch.specs import ImageSpec
from ppdiffusers_tome.tools.console.output import warn
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline, load_from_settings
from ppdiffusers_tome.tools.measure.out_of_memory import free_memory

if TYPE_CHECKING:
    from PIL import Image


@dataclass
class Generator:
    """Generates batches, with one pipeline in memory at a time."""

    _loaded: LoadedPipeline | None = None
    _warned: set[str] = field(default_factory=set)

    def load(self, spec: ImageSpec) -> LoadedPipeline:
        """Return the pipeline that a spec needs, with its settings."""
        if self._loaded is None or self._loaded.settings.controlnet != spec.settings.controlnet:
            self._loaded = None
            free_memory()
            self._loaded = load_from_settings(spec.settings)
        return replace(self._loaded, settings=spec.settings)

    def check(self, spec: ImageSpec) -> None:
        """Refuse a bad spec with a ``UserError``; warn of oddities once."""
        loaded = self.load(spec)
        spec.check()
        loaded.check(spec.prompt)
        for name, oddity in loaded.describe_oddities(spec.prompt).items():
            if name not in self._warned:
                self._warned.add(name)
                warn(f"line {spec.line}: {oddity} (later lines of which the same is true are not reported)")

    def generate(self, specs: Sequence[ImageSpec]) -> list[Image.Image]:
        """Generate the images of specs with the same ``batch_key`` together."""
        from ppdiffusers_tome.tools.generation.sampling import generate_batch

        loaded, settings = self.load(specs[0]), [spec.settings for spec in specs]
        loaded.apply(loaded.settings.tome)
        negative_prompts = [each.negative_prompt for each in settings if each.negative_prompt is not None]
        edges = [loaded.load_edges(each.edges) for each in settings if each.edges is not None]
        return generate_batch(
            loaded.pipe, [spec.prompt for spec in specs], seeds=[each.seed for each in settings],
            negative_prompts=negative_prompts or None, edges=edges or None, **loaded.batch_arguments,
        )  # fmt: skip

"""The classes of a DiTPipeline, which replace prompts. Imports no Paddle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.text import did_you_mean, shorten_repr

DIT_PIPELINE = "DiTPipeline"
_NO_CLASS = 1000  # with guidance the pipeline asks for this class as that of no image, however many its model has


@dataclass(frozen=True)
class ClassLabels:
    """The classes of a pipeline, and the size of its images."""

    class_by_name: Mapping[str, int]  # a class may have several names, or none
    num_classes: int
    image_size: int  # height and width in pixels; no other size is possible

    @classmethod
    def from_pipeline(cls, pipe: Any) -> ClassLabels:
        """Return the classes of a loaded pipeline."""
        config, scale = pipe.transformer.config, compute_vae_scale(pipe.vae.config)
        names = {name: number for name, number in pipe.labels.items() if name}
        return cls(names, config["num_embeds_ada_norm"], config["sample_size"] * scale)

    def list_names(self, count: int | None = None) -> list[str]:
        """List the first classes, or with None all that have a name."""
        names = {number: name for name, number in reversed(list(self.class_by_name.items()))}
        numbers = sorted(names) if count is None else range(min(count, self.num_classes))
        return [names.get(number, str(number)) for number in numbers]

    def find_class(self, prompt: str) -> int:
        """Find the class that a prompt names, by number or by name.

        Example:
            >>> ClassLabels({"cat": 0, "coffee": 1}, 10, 512).find_class("Cat")
            0
        """
        text = prompt.strip()
        if text.isdecimal() and len(text) < 10 and int(text) < self.num_classes:
            return int(text)
        # Exact names last: some differ in capitals alone, as a cardigan and a Cardigan Welsh corgi.
        in_small = {name.lower(): number for name, number in self.class_by_name.items()}
        by_name = {**in_small, **self.class_by_name}
        for name in (text, text.lower()):
            if name in by_name:
                return by_name[name]
        names, suggestion = ", ".join(self.list_names()), did_you_mean(text.lower(), in_small)
        raise UserError(
            f"prompt {shorten_repr(prompt)} is not a class of this {DIT_PIPELINE}{suggestion}; give a number from 0 to "
            f"{self.num_classes - 1}, or a name that it knows: {shorten_repr(names) if names else 'none'}"
        )

    def check_arguments(self, height: int | None, width: int | None, guidance_scale: float) -> None:
        """Check the arguments besides the classes; sizes are in pixels, None is not given."""
        for name, pixels in (("height", height), ("width", width)):
            if pixels not in (None, self.image_size):
                size = f"{self.image_size}x{self.image_size}"
                raise UserError(f"{name} {pixels} is not the size of this {DIT_PIPELINE}, {size} pixels; omit it")
        if guidance_scale > 1 and self.num_classes != _NO_CLASS:
            raise UserError(
                f"guidance scale {guidance_scale:g}: a {DIT_PIPELINE} guides with class {_NO_CLASS} as none, which is "
                f"so with {_NO_CLASS} classes alone, and this model has {self.num_classes}; give 1 (no guidance)"
            )


def compute_vae_scale(vae: Mapping[str, Any]) -> int:
    """Compute how many times smaller than the image a VAE's latent is."""
    return 2 ** (len(vae["block_out_channels"]) - 1)

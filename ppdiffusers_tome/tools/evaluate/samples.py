"""The pictures of an evaluation: a case is drawn by every configuration, in one run of the program or another."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ppdiffusers_tome.tools.generation.results import GeneratedImage
from ppdiffusers_tome.tools.images import slugify
from ppdiffusers_tome.tools.measure.similarity import similarity_from_dict, similarity_to_dict


@dataclass(frozen=True)
class Case:
    """A prompt and the seed of its noise."""

    prompt: str
    seed: int

    @property
    def file_name(self) -> str:
        """The same whatever else is drawn; prompts that begin alike differ in their checksum."""
        return f"{slugify(self.prompt)}-{zlib.crc32(self.prompt.encode()):08x}-seed-{self.seed}.png"


@dataclass(frozen=True)
class Sample:
    """A picture of a case, by one configuration.

    Attributes:
        configuration: its name.
        case: what was drawn.
        run: number of the run of pictures that it belongs to, from 1; each begins with the unmerged picture, with whose
            seconds those of the others are compared.
        drawn: what it took and how it turned out.
    """

    configuration: str
    case: Case
    run: int
    drawn: GeneratedImage

    def without_picture(self) -> Sample:
        """Its figures alone."""
        return replace(self, drawn=replace(self.drawn, kept_image=None))

    def to_dict(self) -> dict[str, Any]:
        """Its figures as JSON has them."""
        drawn = self.drawn
        return {
            "configuration": self.configuration, "prompt": self.case.prompt, "seed": self.case.seed, "run": self.run,
            "seconds": drawn.seconds,
            "block_seconds": {str(level): seconds for level, seconds in drawn.block_seconds.items()},
            "denoising_peak_bytes": drawn.denoising_peak_bytes, "peak_bytes": drawn.peak_bytes,
            **similarity_to_dict(drawn.similarity), "follows_prompt": drawn.follows_prompt,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Sample:
        """What ``to_dict`` described."""
        drawn = GeneratedImage(
            None, values["seconds"], values["peak_bytes"], values["denoising_peak_bytes"],
            similarity_from_dict(values),
            {int(level): seconds for level, seconds in values["block_seconds"].items()}, values["follows_prompt"],
        )  # fmt: skip
        return cls(values["configuration"], Case(values["prompt"], values["seed"]), values["run"], drawn)

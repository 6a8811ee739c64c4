"""What a DiTPipeline takes in place of a prompt: a class, by its name or number. Knows no Paddle.

A folder keeps the names in ``model_index.json``, as ``id2label``: from there ppdiffusers reads them, though its
``save_pretrained`` drops them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.suggestions import did_you_mean
from ppdiffusers_tome.tools.generation.safety_checks import read_json

PIPELINE = "DiTPipeline"
_NO_CLASS = 1000  # with guidance the pipeline asks for this one, however many its model has
_SHOWN = 30  # names in an error


@dataclass(frozen=True)
class ClassLabels:
    """The classes that a pipeline draws, and at which size.

    Attributes:
        class_by_name: numbers of the classes by name; a class may have several names, or none.
        num_classes: how many there are, numbered from 0.
        image_size: side of its images, which are square and have no other size, in pixels.
        only_named: whether it was taught those with a name alone, so that no other number is taken.
    """

    class_by_name: Mapping[str, int]
    num_classes: int
    image_size: int
    only_named: bool = False

    @classmethod
    def from_folder(cls, folder: Path, *, only_named: bool = False) -> ClassLabels:
        """Those of a pipeline in a folder; ``only_named`` as of the object.

        Raises:
            UserError: its files do not tell them.
        """
        index = folder / "model_index.json"
        names = read_json(index).get("id2label") or {}
        if not isinstance(names, dict) or not all(
            key.isdecimal() and len(key) < 10 and isinstance(name, str) for key, name in names.items()
        ):
            raise UserError(f"{index} holds an id2label that gives no names by number, as {{'0': 'cat'}}; correct it")
        # As ppdiffusers reads them: names of one class stand in one line, with commas between.
        numbers = {part.strip(): int(key) for key, name in names.items() for part in name.split(",") if part.strip()}
        transformer, vae = (read_json(folder / part / "config.json") for part in ("transformer", "vae"))
        try:
            return cls(numbers, *_shape(transformer, vae), only_named)
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{folder} is a {PIPELINE} without classes or size ({error!r}); copy the complete model again"
            ) from error

    @classmethod
    def from_pipeline(cls, pipe: Any) -> ClassLabels:
        """Those of a loaded pipeline."""
        return cls(pipe.labels, *_shape(pipe.transformer.config, pipe.vae.config))

    def list_names(self, count: int | None = None) -> list[str]:
        """A name, or the number, of each of the first ``count`` classes; None for all that have a name."""
        names: dict[int, str] = {}
        for name, number in self.class_by_name.items():
            names.setdefault(number, name)
        if count is None or self.only_named:
            return [names[number] for number in sorted(names)][:count]
        return [names.get(number, str(number)) for number in range(min(count, self.num_classes))]

    def find_class(self, prompt: str) -> int:
        """The class that a prompt names: by number, by name, or as the bundled model's prompts do.

        Raises:
            UserError: there is no such class.

        >>> ClassLabels({"cat": 0, "coffee": 1}, 10, 512).find_class("a photo of a cat")
        0
        """
        from ppdiffusers_tome.tools.demo_model.photographs import subject_of

        text = prompt.strip()
        if text.isdecimal() and len(text) < 10 and int(text) in self._taken:
            return int(text)
        if text in self.class_by_name:  # names may differ in capitals alone: a cardigan, and a Cardigan Welsh corgi
            return self.class_by_name[text]
        by_name = {name.lower(): number for name, number in reversed(list(self.class_by_name.items()))}
        subject = subject_of(text)
        for name in (text.lower(), None if subject is None else subject.name):
            if name in by_name:
                return by_name[name]
        taken = self._taken
        numbers = f"a number from {taken[0]} to {taken[-1]}"
        if len(taken) <= taken[-1] - taken[0]:
            numbers = f"one of the numbers {', '.join(map(str, taken))}"
        names = self.list_names()
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            listed = f"it draws {', '.join(names[:_SHOWN])}{more}; give one of these, or {numbers}"
        else:
            listed = f"its classes have no names (model_index.json holds no id2label), so give {numbers}"
        raise UserError(
            f"prompt {prompt!r} is not a class of this {PIPELINE}{did_you_mean(text.lower(), by_name)}; {listed}"
        )

    @property
    def _taken(self) -> Sequence[int]:
        """The numbers that may be asked for, in order."""
        return sorted(set(self.class_by_name.values())) if self.only_named else range(self.num_classes)

    def check_arguments(
        self, options: Mapping[str, Any], height: int | None, width: int | None, guidance_scale: float
    ) -> None:
        """The pipeline takes what it is given beside its classes.

        Args:
            options: values of arguments that only pipelines with prompts take, by what the user calls them; None where
                one was not given.
            height, width: in pixels; None where they were not given.
            guidance_scale: as in ppdiffusers.

        Raises:
            UserError: it does not take one of them.
        """
        for option, value in options.items():
            if value is not None:
                raise UserError(
                    f"{option} is for pipelines with prompts, and a {PIPELINE} is given a class alone; leave it out"
                )
        for name, pixels in (("height", height), ("width", width)):
            if pixels not in (None, self.image_size):
                raise UserError(
                    f"{name} {pixels} is not the size of this {PIPELINE}, which draws "
                    f"{self.image_size}x{self.image_size} pixels and nothing else; give "
                    f"{self.image_size}, or leave it out"
                )
        if guidance_scale > 1 and self.num_classes < _NO_CLASS:
            raise UserError(
                f"guidance scale {guidance_scale:g}: a {PIPELINE} takes class {_NO_CLASS} for that, and this model has "
                f"{self.num_classes}; give 1 (no guidance)"
            )


def select_prompts(labels: ClassLabels | None, given: Sequence[str] | None, default: Sequence[str]) -> list[str]:
    """The prompts that were given, or the default ones.

    Args:
        labels: of a pipeline that takes classes; then each prompt is checked, and as many classes as there are default
            prompts are the default.
        given: None where none were.
        default: for pipelines that take prompts.

    Raises:
        UserError: a prompt names no class.
    """
    if labels is None:
        return list(default if given is None else given)
    prompts = labels.list_names(len(default)) if given is None else list(given)
    for prompt in prompts:
        labels.find_class(prompt)
    return prompts


def _shape(transformer: Mapping[str, Any], vae: Mapping[str, Any]) -> tuple[int, int]:
    """The number of classes and the side of the pictures, from the configurations of the parts.

    Raises:
        KeyError, TypeError: they do not tell.
    """
    return int(transformer["num_embeds_ada_norm"]), int(transformer["sample_size"]) * compute_vae_scale(vae)


def compute_vae_scale(vae: Mapping[str, Any]) -> int:
    """How many pixels of each side a latent's pixel stands for, as pipelines that tell it work it out."""
    return 2 ** (len(vae["block_out_channels"]) - 1)

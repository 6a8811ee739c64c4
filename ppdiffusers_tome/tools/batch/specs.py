"""Images that a file of prompts asks for, untrusted. Imports no Paddle."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ppdiffusers_tome.errors import ToMeError, UserError
from ppdiffusers_tome.settings.suggestions import did_you_mean
from ppdiffusers_tome.settings.types import truncated_repr
from ppdiffusers_tome.tools.batch.options import BatchOptions
from ppdiffusers_tome.tools.batch.prompts_file import FIELDS, read_entries
from ppdiffusers_tome.tools.generation.settings import Settings, check_seed, check_size
from ppdiffusers_tome.tools.images import slugify

_MAX_BYTES = 200  # of 255, as a temporary file has a longer name
_FILE_NAME = re.compile(r'[^\s.<>:"/\\|?*\x00-\x1f\x7f][^<>:"/\\|?*\x00-\x1f\x7f]*\.png', re.IGNORECASE)
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # JSON can hold halves of a character


class ImageSpec(NamedTuple):
    """One image to generate.

    Attributes:
        number: its entry in the file of prompts, from 1; blank lines and a header do not count, bad lines do.
        line: the line of the file, from 1.
        file: the name of the image in the output folder.
        prompt: what to generate.
        settings: those of the run with the changes of the line; without edges also without a ControlNet.
        image, control_image: an image file as the line names it, at most one; None for that of the command line.
    """

    number: int
    line: int
    file: str
    prompt: str
    settings: Settings
    image: str | None
    control_image: str | None

    @property
    def batch_key(self) -> tuple[Any, ...]:
        """Everything that the images of one batch must have in common."""
        settings = self.settings
        # Some models tell no negative prompt from an empty one.
        has_negative_prompt = settings.negative_prompt is not None
        return settings.edges is not None, settings.height, settings.width, settings.tome, has_negative_prompt

    @property
    def values(self) -> dict[str, Any]:
        """Everything that a line can say, as the manifest has it."""
        names = ("negative_prompt", "seed", "height", "width")
        return {
            "number": self.number, "file": self.file, "prompt": self.prompt,
            **{name: getattr(self.settings, name) for name in names}, "ratio": self.settings.tome.to_dict()["ratio"],
            "image": self.image, "control_image": self.control_image,
        }  # fmt: skip

    @property
    def checksum(self) -> str:
        """Checksum of the values."""
        return hashlib.sha256(json.dumps(self.values).encode()).hexdigest()[:16]

    def check(self) -> None:
        """Raise a ``UserError`` for what can be refused without a loaded model."""
        self.settings.check_memory()
        names_edges = self.image is not None or self.control_image is not None
        if self.settings.edges is not None and names_edges:  # the run's own were checked
            self.settings.edges.check()


class BadLine(NamedTuple):
    """A line of which no image can be generated."""

    number: int
    line: int
    error: str


def read_specs(options: BatchOptions) -> tuple[list[ImageSpec], list[BadLine]]:
    """Read a file of prompts: its images, and the lines that cannot be used."""
    specs: list[ImageSpec] = []
    bad: list[BadLine] = []
    lines: dict[str, int] = {}
    for number, (line, values) in enumerate(read_entries(options.prompts), start=1):
        try:
            if isinstance(values, UserError):
                raise values
            spec = _make_spec(options, values, number, line)
            # Some file systems ignore case, and the way accents are composed.
            first = lines.setdefault(unicodedata.normalize("NFC", spec.file).casefold(), line)
            if first != line:
                raise UserError(f"output {spec.file!r} is that of line {first} already; give each line its own")
            specs.append(spec)
        except ToMeError as error:
            bad.append(BadLine(number, line, " ".join(str(error).split())))
    if not specs and not bad:
        raise UserError(f"--prompts {options.prompts} holds no prompt; write one per line")
    return specs, bad


def form_batches(specs: Sequence[ImageSpec], batch_size: int) -> list[list[ImageSpec]]:
    """Group specs into batches, first those without edges, which need another pipeline.

    An image's bits may depend on the batch it is in, and with ``min_similarity`` they do. So batches follow from the
    file alone, whatever is finished and however many ranks there are.
    """
    groups: dict[tuple[Any, ...], list[ImageSpec]] = {}
    for spec in specs:
        groups.setdefault(spec.batch_key, []).append(spec)
    batches = [
        group[start : start + batch_size] for group in groups.values() for start in range(0, len(group), batch_size)
    ]
    return sorted(batches, key=lambda batch: (batch[0].settings.edges is not None, batch[0].number))


def _make_spec(options: BatchOptions, values: Mapping[str, Any], number: int, line: int) -> ImageSpec:
    """Check the values of a line; those of a table are all texts."""
    unknown = next((name for name in values if name not in FIELDS), None)
    if unknown is not None:
        suggestion = did_you_mean(unknown, FIELDS) or f"; known are {', '.join(FIELDS)}"
        raise UserError(f"{truncated_repr(unknown)} is not known{suggestion}")
    texts = ("prompt", "negative_prompt", "image", "control_image", "output")
    prompt, negative_prompt, image, control_image, output = (_check_text(name, values.get(name)) for name in texts)
    seed, height, width, ratio = (
        _parse_number(name, values.get(name), float if name == "ratio" else int)
        for name in ("seed", "height", "width", "ratio")
    )
    if prompt is None or not prompt.strip():
        raise UserError("it has no prompt; say what to generate")
    settings = options.settings
    seed = settings.seed + number - 1 if seed is None else seed
    check_seed("seed", seed)
    check_size("height", height)
    check_size("width", width)
    photo, edges = (None if name is None else options.prompts.parent / name for name in (image, control_image))
    settings = settings.guide(photo, edges, *options.canny)
    settings = replace(
        settings, seed=seed, height=height or settings.height, width=width or settings.width,
        negative_prompt=settings.negative_prompt if negative_prompt is None else negative_prompt,
        tome=settings.tome if ratio is None else replace(settings.tome, ratio=ratio),
        controlnet=settings.controlnet if settings.edges else None,
    )  # fmt: skip
    return ImageSpec(number, line, _choose_file(number, prompt, output), prompt, settings, image, control_image)


def _choose_file(number: int, prompt: str, output: str | None) -> str:
    """Choose the name of an image, which every file system keeps."""
    if output is None:
        return f"{number:06d}-{slugify(prompt)}.png"
    if not _FILE_NAME.fullmatch(output) or len(output.encode()) > _MAX_BYTES:
        raise UserError(
            f"output {truncated_repr(output)} must be the name of a file alone that ends in .png, such as star.png: "
            f'not hidden, without <>:"/\\|?* and control characters, at most {_MAX_BYTES} bytes'
        )
    return output


def _check_text(name: str, value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or _NO_TEXT.search(value)):
        raise UserError(f"{name} {truncated_repr(value)} must be text, without characters that no text has")
    return value


def _parse_number(name: str, value: Any, kind: Callable[[str], Any]) -> Any:
    try:
        return None if value is None else kind(str(value))  # so that True is no number, and 0.5 no whole one
    except ValueError:
        accepted = "a whole number" if kind is int else "a number such as 0.5"
        raise UserError(f"{name} {truncated_repr(value)} must be {accepted}") from None

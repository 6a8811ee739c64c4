"""Images that a file of prompts asks for, untrusted. Imports no Paddle."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ppdiffusers_tome.errors import ToMeError, UserError
from ppdiffusers_tome.settings.suggestions import did_you_mean
from ppdiffusers_tome.settings.types import truncated_repr
from ppdiffusers_tome.tools.batch.options import BatchOptions
from ppdiffusers_tome.tools.batch.prompts_file import FIELDS, is_blank, read_entries
from ppdiffusers_tome.tools.generation.edges import EdgeSource
from ppdiffusers_tome.tools.generation.settings import check_seed, check_size
from ppdiffusers_tome.tools.images import slugify

_MAX_BYTES = 200  # of 255, as a temporary file has a longer name
_FILE_NAME = re.compile(r'[^\s.<>:"/\\|?*\x00-\x1f\x7f][^<>:"/\\|?*\x00-\x1f\x7f]*\.png', re.IGNORECASE)
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # JSON can hold halves of a character
_WHOLE_NUMBER = re.compile(r"\s*[+-]?\d{1,30}\s*")


class ImageSpec(NamedTuple):
    """One image to generate.

    Attributes:
        number: its entry in the file of prompts, from 1; blank lines and a header do not count, bad lines do.
        line: the line of the file, from 1.
        file: the name of the image in the output folder.
        prompt, negative_prompt: texts; None for no negative prompt.
        seed: from 0 to 2**62.
        height, width: in pixels; None for the model's native size.
        ratio: fraction of the tokens to merge; None for that of the run's settings.
        image, control_image: an image file as the line names it, at most one; None for that of the command line.
        edges: the edges that guide the image; None for none.
    """

    number: int
    line: int
    file: str
    prompt: str
    negative_prompt: str | None
    seed: int
    height: int | None
    width: int | None
    ratio: float | None
    image: str | None
    control_image: str | None
    edges: EdgeSource | None

    @property
    def names_image(self) -> bool:
        """True if the line itself names an image to be guided by."""
        return self.image is not None or self.control_image is not None

    @property
    def batch_key(self) -> tuple[Any, ...]:
        """Everything that the images of one batch must have in common."""
        # Some models tell no negative prompt from an empty one.
        return self.edges is not None, self.height, self.width, self.ratio, self.negative_prompt is not None

    @property
    def checksum(self) -> str:
        """Checksum of everything the line asks for."""
        return hashlib.sha256(json.dumps(self[2:-1]).encode()).hexdigest()[:16]


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
    return sorted(batches, key=lambda batch: (batch[0].edges is not None, batch[0].number))


def _make_spec(options: BatchOptions, values: Mapping[str, Any], number: int, line: int) -> ImageSpec:
    """Check the values of a line; those of a table are all texts."""
    unknown = next((name for name in values if name not in FIELDS), None)
    if unknown is not None:
        suggestion = did_you_mean(unknown, FIELDS) or f"; known are {', '.join(FIELDS)}"
        raise UserError(f"{truncated_repr(unknown)} is not known{suggestion}")
    settings = options.settings
    prompt, negative_prompt, image, control_image, output = (
        _check_text(name, values.get(name))
        for name in ("prompt", "negative_prompt", "image", "control_image", "output")
    )
    seed, height, width = (_parse_whole_number(name, values.get(name)) for name in ("seed", "height", "width"))
    if prompt is None or is_blank(prompt):
        raise UserError("it has no prompt; say what to generate")
    seed = settings.seed + number - 1 if seed is None else seed
    check_seed("seed", seed)
    check_size("height", height, prefix="")
    check_size("width", width, prefix="")
    if image is not None and control_image is not None:
        raise UserError("image and control_image were both given; give the photo or its edges, not both")
    edges = settings.edges
    if image is not None:
        edges = options.make_edge_source(image, "--image")
    elif control_image is not None:
        edges = options.make_edge_source(control_image, "--control-image")
    return ImageSpec(
        number, line, _choose_file(number, prompt, output), prompt,
        settings.negative_prompt if negative_prompt is None else negative_prompt, seed, height or settings.height,
        width or settings.width, _parse_ratio(options, values.get("ratio")), image, control_image, edges,
    )  # fmt: skip


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
    if value is not None and not isinstance(value, str):
        raise UserError(f"{name} {truncated_repr(value)} must be text")
    if value is not None and _NO_TEXT.search(value):
        raise UserError(f"{name} {truncated_repr(value)} holds a character that no text has; remove it")
    return value


def _parse_whole_number(name: str, value: Any) -> int | None:
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value):
        return int(value)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise UserError(f"{name} {str(value)[:40]!r} must be a whole number")
    return value


def _parse_ratio(options: BatchOptions, value: Any) -> float | None:
    if value is None:
        return None
    try:
        ratio = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"ratio {str(value)[:40]!r} must be a number such as 0.5") from None
    replace(options.settings.tome, ratio=ratio)  # checks its range
    return ratio

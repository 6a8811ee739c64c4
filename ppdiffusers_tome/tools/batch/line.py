"""A line of a file of prompts, checked: nothing in it is trusted. Knows no Paddle."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.suggestions import did_you_mean
from ppdiffusers_tome.settings.types import truncated_repr
from ppdiffusers_tome.tools.batch.encodings import how_to_convert, what_is_wrong
from ppdiffusers_tome.tools.generation.settings import check_seed, check_size
from ppdiffusers_tome.tools.images import slugify

FIELDS = ("prompt", "negative_prompt", "seed", "height", "width", "ratio", "image", "control_image", "output")
STOP, SKIP = "stop", "skip"  # what follows a line that cannot be drawn
_KNOWN = frozenset(FIELDS)
_SAID = ("prompt", "negative_prompt")
# What a file system takes is mostly 255 bytes; the rest is for the temporary name while the file is written.
_MAX_NAME_BYTES = 200
_WHOLE_NUMBER = re.compile(r"\s*[+-]?\d{1,30}\s*")
_NO_BYTES = re.compile(r"[\ud800-\udc7f\udd00-\udfff]")  # surrogates that stand for none
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_WINDOWS_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


class Line(NamedTuple):  # made in a fifth of a dataclass's time: ten million are checked before the first is drawn
    """One picture that is asked for.

    Attributes:
        number: which entry of the file it is, from 1; blank lines and a CSV's header do not count, bad lines do.
        line: the line of the file that it begins on, from 1.
        output: the name that it gives its picture; None for one of the number and the prompt.
        prompt: what to draw.
        negative_prompt: what not to; None for that of the command line.
        seed: of the picture.
        height, width: in pixels; None for those of the command line, or the model's native size.
        ratio: share of the tokens to merge; None for that of the command line.
        image, control_image: a photo, or edges, at most one of them, relative to the prompts' folder; None for that of
            the command line.
        folder: where the file of prompts is.
    """

    number: int
    line: int
    output: str | None
    prompt: str
    negative_prompt: str | None
    seed: int
    height: int | None
    width: int | None
    ratio: float | None
    image: str | None
    control_image: str | None
    folder: Path

    @property
    def file(self) -> str:
        """The picture's name in its folder."""
        return f"{self.number:06d}-{slugify(self.prompt)}.png" if self.output is None else self.output

    @property
    def control(self) -> Path | None:
        """The picture of its own that guides it."""
        named = self.image if self.image is not None else self.control_image
        return None if named is None else self.folder / named

    @property
    def checksum(self) -> str:
        """Of all that the line asks for, so that a changed line is noticed."""
        request = [
            self.file, self.prompt, self.negative_prompt, self.seed, self.height, self.width, self.ratio, self.image,
            self.control_image,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(request).encode()).hexdigest()[:16]

    def check_control(self, image_root: Path | None) -> None:
        """Make sure that its picture is there and may be read.

        Args:
            image_root: the folder that must hold it, all links followed and all ``..`` gone; None for any.

        Raises:
            UserError: it is not there, or elsewhere.
        """
        path = self.control
        if path is None:
            return
        if image_root is not None:  # first, or the answers would tell what there is outside
            _check_within(path, image_root)
        try:
            if not path.is_file():
                raise UserError(
                    f"{path} does not exist or is not a file; give a picture, relative to the file of prompts"
                )
        except OSError as error:
            raise UserError(f"{str(path)[:80]!r} cannot be read ({error.strerror}); give a picture") from error


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be drawn.

    Attributes:
        number: which entry of the file it is, from 1.
        line: the line of the file that it begins on, from 1.
        error: what is wrong with it.
        again: whether the same line may be drawn another time: when its picture is there, or memory is free.
    """

    number: int
    line: int
    error: str
    again: bool

    def stopping(self, prompts: Path) -> str:
        """Why a run stops at it."""
        return (
            f"--prompts {prompts}, line {self.line}: {self.error}; correct it and give the same command again, which "
            "resumes there, or leave such lines out with --on-error skip"
        )

    def skipping(self, prompts: Path) -> str:
        """That a run skips it."""
        return f"--prompts {prompts}, line {self.line} is skipped: {self.error}"


def line_of(
    values: Mapping[str, Any], number: int, line: int, folder: Path, *, first_seed: int, tome: ToMeConfig
) -> Line:
    """Make a line of what a file says of it.

    Args:
        values: by the names of ``FIELDS``; from a CSV all are texts.
        number, line, folder: as in ``Line``.
        first_seed: without a seed it is ``first_seed + number - 1``.
        tome: the settings that its ratio must go with.

    Raises:
        UserError: a value cannot be used.
    """
    if not _KNOWN.issuperset(values):
        name = next(name for name in values if name not in _KNOWN)
        suggestion = did_you_mean(name, FIELDS) or f"; known are {', '.join(FIELDS)}"
        raise UserError(f"{truncated_repr(name)} is not known{suggestion}")
    get = values.get
    prompt, output = _text("prompt", get("prompt")), _text("output", get("output"))
    if prompt is None or not prompt.strip():
        raise UserError("it has no prompt; say what to draw")
    if output is not None:
        check_file_name(output)
    seed = _whole_number("seed", get("seed"))
    seed = first_seed + number - 1 if seed is None else seed
    check_seed("seed", seed)
    height, width = _whole_number("height", get("height")), _whole_number("width", get("width"))
    check_size("height", height, prefix="")
    check_size("width", width, prefix="")
    image, control_image = _text("image", get("image")), _text("control_image", get("control_image"))
    if image is not None and control_image is not None:
        raise UserError("image and control_image were both given; give the photo or its edges, not both")
    return Line(
        number, line, output, prompt, _text("negative_prompt", get("negative_prompt")), seed, height, width,
        _ratio(get("ratio"), tome), image, control_image, folder,
    )  # fmt: skip


def check_file_name(name: str) -> None:
    """Make sure that a picture of that name lies in the output folder itself, on every file system.

    Raises:
        UserError: it would not; the message says what is accepted.
    """
    remedy = "give the name of a file alone, such as star.png"
    if _FORBIDDEN.search(name):
        raise UserError(f'output {truncated_repr(name)} holds one of <>:"/\\|?* or a control character; {remedy}')
    if name.startswith(".") or name != name.strip() or _WINDOWS_DEVICES.match(name):
        raise UserError(
            f"output {truncated_repr(name)} is a hidden or reserved name, or begins or ends with a space; {remedy}"
        )
    if not name.lower().endswith(".png"):
        raise UserError(f"output {truncated_repr(name)} does not end in .png, as all pictures are; {remedy}")
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise UserError(f"output {name[:40]!r}... has more than {_MAX_NAME_BYTES} bytes; {remedy}")


def _check_within(picture: Path, folder: Path) -> None:
    try:
        inside = Path(os.path.realpath(picture)).is_relative_to(os.path.realpath(folder))
    except (OSError, ValueError):  # no path at all: too long, or with a null byte
        inside = False
    if not inside:
        raise UserError(
            f"{str(picture)[:200]!r} is outside of --image-root {str(folder)!r}, by its name or by a link; put "
            "the picture into that folder"
        )


def _text(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise UserError(f"{name} {truncated_repr(value)} must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{name} is not UTF-8; {how_to_convert(_as_read(value))}") from None
    if name in _SAID and (wrong := what_is_wrong(value)) is not None:
        raise UserError(f"{name} {wrong}")
    return value


def _as_read(text: str) -> bytes:
    """The bytes that a text of a CSV was read from; what cannot come from there is left out."""
    return _NO_BYTES.sub("", text).encode("utf-8", "surrogateescape")


def _whole_number(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value):
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserError(f"{name} {str(value)[:40]!r} must be a whole number")
    return value


def _ratio(value: Any, tome: ToMeConfig) -> float | None:
    if value is None:
        return None
    try:
        ratio = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"ratio {str(value)[:40]!r} must be a number such as 0.5") from None
    replace(tome, ratio=ratio)
    return ratio

"""Prompts of the command line and of files, and a DiTPipeline's classes.

Imports no Paddle.
"""

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.text import did_you_mean, shorten_repr

DIT_PIPELINE = "DiTPipeline"
_UNENCODABLE = re.compile("[\0\ud800-\udfff]")  # Python reads bytes of another encoding as halves of a character


def parse_prompts(args: argparse.Namespace, default: Sequence[str] = ()) -> list[str]:
    """Return the prompts of ``--prompt`` and ``--prompts``, or the default ones."""
    if args.prompts is None:
        return check_prompts(args.prompt, default)
    return [*check_prompts(args.prompt), *read_prompts(args.prompts)]


def read_prompts(path: Path) -> list[str]:
    """Read a prompt a line of UTF-8, UTF-16 or UTF-32."""
    try:
        content = path.read_bytes()
        encoding = json.detect_encoding(content)  # by its first bytes
        lines = content.decode(encoding).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not text in {encoding.upper()}"
        raise UserError(f"--prompts {path} cannot be read ({reason}); give a text with a prompt a line") from error
    prompts = [line.strip() for line in lines if line.strip()]
    for prompt in prompts:
        check_text(f"--prompts {path}:", prompt)
    if not prompts:
        raise UserError(f"--prompts {path} holds no prompt; write one on each line")
    return prompts


def check_prompts(prompts: Sequence[str] | None, default: Sequence[str] = (), *, most: float = math.inf) -> list[str]:
    """Return the prompts, of which none is blank, or the default ones."""
    prompts = list(default if prompts is None else prompts)
    if len(prompts) > most:
        raise UserError(f"{len(prompts)} prompts were given, and this command takes {most}; give one --prompt")
    for prompt in prompts:
        check_text("--prompt", prompt)
        if not prompt.strip():
            raise UserError(f"--prompt {prompt!r} is empty; say what to generate")
    return prompts


def check_text(name: str, text: Any) -> None:
    """Refuse what is no text, or cannot be encoded, in words about ``name``."""
    if not isinstance(text, str) or _UNENCODABLE.search(text):
        raise UserError(
            f"{name} {shorten_repr(text)} must be text, without characters that no text has; bytes in another "
            "encoding than the terminal's become such: save a script as UTF-8"
        )


@dataclass(frozen=True)
class ClassLabels:
    """The classes of a DiTPipeline."""

    class_by_name: Mapping[str, int]  # a class may have several names, or none
    num_classes: int

    def list_names(self) -> list[str]:
        """List the classes that have a name, each by its first."""
        names = {number: name for name, number in reversed(list(self.class_by_name.items()))}
        return [names[number] for number in sorted(names)]

    def find_class(self, prompt: str) -> int:
        """Find the class that a prompt names, by number or by name.

        Example:
            >>> ClassLabels({"cat": 0, "coffee": 1}, 10).find_class("Cat")
            0
        """
        text = prompt.strip()
        if text.isdecimal() and len(text) < 10 and int(text) < self.num_classes:
            return int(text)
        # Exact names win, as some differ in capitals alone: a cardigan and a Cardigan Welsh corgi.
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

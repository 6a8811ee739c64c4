"""Prompts, alone and in files. Imports no Paddle."""

import argparse
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.text import shorten_repr

_UNENCODABLE = re.compile("[\0\ud800-\udfff]")  # Python reads bytes of another encoding as halves of a character


def parse_prompts(args: argparse.Namespace, default: Sequence[str] = ()) -> list[str]:
    """Return the prompts of ``--prompt``, then those of ``--prompts``; or the default ones."""
    if args.prompts is None:
        return check_prompts(args.prompt, default)
    return [*check_prompts(args.prompt), *read_prompts(args.prompts)]


def read_prompts(path: Path) -> list[str]:
    """Read a text with a prompt on each line, in UTF-8, UTF-16 or UTF-32."""
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
    """Check that a text is one; errors call it ``name``."""
    if not isinstance(text, str) or _UNENCODABLE.search(text):
        raise UserError(
            f"{name} {shorten_repr(text)} must be text, without characters that no text has; bytes in another "
            "encoding than the terminal's become such: save a script as UTF-8"
        )

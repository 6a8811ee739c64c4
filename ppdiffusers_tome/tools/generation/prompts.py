"""Files of prompts. Imports no Paddle."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.generation.image_settings import check_prompts


def parse_prompts(args: argparse.Namespace, default: Sequence[str] = ()) -> list[str]:
    """Return the prompts of ``--prompt``, then those of ``--prompts``; or the default ones."""
    if args.prompts is None:
        return check_prompts(args.prompt, default)
    return check_prompts([*(args.prompt or ()), *read_prompts(args.prompts)])


def read_prompts(path: Path) -> list[str]:
    """Read a text with a prompt on each line, in UTF-8, UTF-16 or UTF-32."""
    try:
        content = path.read_bytes()
        encoding = json.detect_encoding(content)
        lines = content.decode(encoding).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not text in {encoding.upper()}"
        raise UserError(f"--prompts {path} cannot be read ({reason}); give a text with a prompt a line") from error
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise UserError(f"--prompts {path} holds no prompt; write one on each line")
    return prompts

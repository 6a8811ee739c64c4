"""Result files: written whole, and named on the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ppdiffusers_tome.exporting.files import write_whole
from ppdiffusers_tome.tools.console.output import print_line


def write_text(path: Path, text: str, *, overwrite: bool) -> None:
    """Write a text file whole or not at all, and print its path.

    Raises:
        UserError: the file exists and must not be replaced, or cannot be written.
    """
    write_whole(path, lambda file: file.write(text.encode()), overwrite=overwrite)
    print_line(str(path))


def write_json(path: Path, content: Any, *, overwrite: bool) -> None:
    """Write plain values as JSON, as ``write_text`` does; nan and infinity, which JSON does not know, are errors."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n", overwrite=overwrite)

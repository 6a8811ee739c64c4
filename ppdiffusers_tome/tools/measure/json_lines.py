"""Files with a JSON object per line, which a killed process may have left. Imports no Paddle."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a file, which need not exist.

    Incomplete lines, as after a killed process or a power failure, are skipped with a warning.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); choose another --output") from error
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        value = None
        with suppress(ValueError, RecursionError):
            value = json.loads(line)
        if isinstance(value, dict):
            lines.append(value)
        elif line.strip():
            message = f"{path}, line {number} is incomplete, as after a killed process; it is skipped"
            warnings.warn(message, stacklevel=2)
    return lines

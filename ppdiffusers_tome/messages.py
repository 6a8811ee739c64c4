"""Warnings at the user's line, and lines about what takes seconds."""

import contextlib
import functools
import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

# A warning names the first line outside of these files: the user's. Paddle 2.6 wraps functions with ``decorator``.
_SPECS = map(find_spec, ("ppdiffusers_tome", "paddle", "ppdiffusers", "paddlenlp", "decorator"))
_LIBRARIES = (contextlib.__file__, functools.__file__, *(
    f"{Path(spec.origin).parent}{os.sep}" if spec.submodule_search_locations else spec.origin  # a folder, or one file
    for spec in _SPECS if spec and spec.origin
))  # fmt: skip


def warn_user(message: str) -> None:
    """Warn at the line of the user's code, once a line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"ToMe: {message}", stacklevel=level + 1)


def show_progress(message: str) -> None:
    """Write a line to the terminal while something takes seconds."""
    print(f"ToMe: {message}", file=sys.stderr, flush=True)

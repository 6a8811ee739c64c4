"""Bytes, seconds and counts, as people write and read them."""

from __future__ import annotations

import argparse
import re

from ppdiffusers_tome.settings.text import format_count as format_count

NOT_MEASURED = "not measured"


def parse_bytes(text: str) -> int:
    """Read ``8GiB`` or ``8GB``, as the type of an argument."""
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d+)?)\s*([KMGT])(i?)B\s*", text)
    size = int(float(found[1]) * (1024 if found[3] else 1000) ** (1 + "KMGT".index(found[2]))) if found else 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} must be a size above 0 with its unit, such as 8GiB or 900MB")
    return size


def format_bytes(size: int | None) -> str:
    """Return ``128 MiB`` for 134217728, ``not measured`` for None."""
    return NOT_MEASURED if size is None else f"{size / 2**20:,.0f} MiB"


def format_seconds(seconds: float) -> str:
    """Return ``12.35 s`` for 12.345, ``0.0123 s`` for 0.01234."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds:.3g} s"

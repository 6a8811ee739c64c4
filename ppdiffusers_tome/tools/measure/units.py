"""Bytes, seconds and counts, as people write and read them."""

from __future__ import annotations

import re

from ppdiffusers_tome.errors import UserError

NOT_MEASURED = "not measured"
_UNITS = {
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip


def parse_bytes(text: str, option: str = "") -> int:
    """Read ``8GiB`` or ``8GB``; an error names the option.

    Raises:
        UserError: it is no size above 0.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B)\s*", text)
    size = int(float(found[1]) * _UNITS[found[2]]) if found and len(found[1]) < 300 else 0
    if size < 1:
        given = f"{option} {text}" if option else repr(text)
        raise UserError(f"{given} must be a size above 0 with its unit ({', '.join(_UNITS)}), such as 8GiB")
    return size


def format_bytes(size: int | None) -> str:
    """Return ``128 MiB`` for 134217728, ``not measured`` for None."""
    return NOT_MEASURED if size is None else f"{size / 2**20:,.0f} MiB"


def format_seconds(seconds: float) -> str:
    """Return ``12.35 s`` for 12.345, ``0.0123 s`` for 0.01234."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds:.3g} s"


def counted(number: int, what: str) -> str:
    """Return ``1 step``, ``2 steps``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"

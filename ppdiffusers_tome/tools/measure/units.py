"""Bytes and seconds, as people read them."""

NOT_MEASURED = "not measured"


def format_bytes(size: int | None) -> str:
    """Return ``128 MiB`` for 134217728, ``not measured`` for None."""
    return NOT_MEASURED if size is None else f"{size / 2**20:,.0f} MiB"


def format_seconds(seconds: float) -> str:
    """Return ``12.35 s`` for 12.345, ``0.0123 s`` for 0.01234."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds:.3g} s"

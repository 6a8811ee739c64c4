"""Pages of which a script writes a part, between two comments."""

from __future__ import annotations

from pathlib import Path

from ppdiffusers_tome.tools.files import write_text


def write_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands in a page between two lines; each is there once.

    Raises:
        UserError: the page cannot be written.
    """
    before, rest = page.read_text(encoding="utf-8").split(begin)
    write_text(page, f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}", overwrite=True)

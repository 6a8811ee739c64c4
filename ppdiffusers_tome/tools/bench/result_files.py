"""What a benchmark leaves behind: a page with its tables, all its figures as JSON, and perhaps a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.tools.cli.console.tables import Page
from ppdiffusers_tome.tools.files import prepare_folder, write_json, write_text

if TYPE_CHECKING:
    from PIL import Image


class ResultFiles:
    """Files of one name, which are known to be possible before anything is measured.

    Args:
        folder: where to; made where it does not exist.
        name: of the files, without ``.md``, ``.json`` and ``.png``.
        picture: whether there will be one.
        overwrite: whether existing files may be replaced.

    Raises:
        UserError: the folder cannot be made or written, or a file exists and must not be replaced.
    """

    def __init__(self, folder: Path, name: str, *, picture: bool = False, overwrite: bool = False) -> None:
        ends = ("md", "json", "png") if picture else ("md", "json")
        self._paths = prepare_folder(folder, [f"{name}.{end}" for end in ends], overwrite=overwrite)
        self._overwrite = overwrite

    def write(
        self, page: Page, results: Mapping[str, Any], picture: Image.Image | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Write all files, print the page and their paths.

        Args:
            page: what was measured, for people.
            results: the same, and more, as plain values.
            picture, settings: a picture, and what to write into its file about how it was made.

        Raises:
            UserError: a file exists and must not be replaced, or cannot be written.
        """
        from ppdiffusers_tome.tools.images import write_image

        files = self._paths if picture is not None else self._paths[:2]
        write_text(files[0], page.markdown(), overwrite=self._overwrite)
        write_json(files[1], results, overwrite=self._overwrite)
        if picture is not None:
            write_image(files[2], picture, settings, overwrite=self._overwrite)
        page.print(files)


def described(run: Mapping[str, Any]) -> str:
    """What was asked for and measured on, as a note."""
    return ", ".join(f"{name}: {value}" for name, value in run.items())

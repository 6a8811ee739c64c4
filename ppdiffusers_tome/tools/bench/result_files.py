"""What a benchmark leaves behind: a page with its tables, all its figures as JSON, and perhaps a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.exporting.files import prepare_folder
from ppdiffusers_tome.tools.console.output import print_line
from ppdiffusers_tome.tools.console.results import write_json, write_text
from ppdiffusers_tome.tools.console.tables import Table

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
        self, page: str, results: Mapping[str, Any], picture: Image.Image | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Print the page, write all files, and print their paths.

        Args:
            page: in Markdown.
            results: the same, and more, as plain values.
            picture, settings: a picture, and what to write into its file about how it was made.

        Raises:
            UserError: a file exists and must not be replaced, or cannot be written.
        """
        from ppdiffusers_tome.tools.drawing.picture_files import write_picture

        print_line(page)
        write_text(self._paths[0], page, overwrite=self._overwrite)
        write_json(self._paths[1], results, overwrite=self._overwrite)
        if picture is not None:
            write_picture(self._paths[2], picture, settings, overwrite=self._overwrite)
            print_line(str(self._paths[2]))


def page_of(title: str, notes: Iterable[str], *tables: Table) -> str:
    """A page in Markdown: notes as a list, and tables."""
    return "\n".join([f"# {title}", "", *(f"- {note}" for note in notes), "", *(each.markdown() for each in tables)])


def described(run: Mapping[str, Any]) -> str:
    """What was asked for and measured on, as a note."""
    return ", ".join(f"{name}: {value}" for name, value in run.items())

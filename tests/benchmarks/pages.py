"""The arguments, the process and the pages of the scripts."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import PRESETS
from ppdiffusers_tome.tools.console.tables import Table
from ppdiffusers_tome.tools.files import prepare_folder

T = TypeVar("T")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with ``--output`` and ``--overwrite``."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--output", type=Path, default=Path("outputs"), metavar="FOLDER", help="default: outputs")
    result.add_argument("--overwrite", action="store_true", help="replace files that exist")
    return result


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None, name: str) -> argparse.Namespace:
    """Parse the arguments, and refuse to replace earlier results."""
    args = parser.parse_args(argv)
    file = args.output / f"{name}.md"
    if file.exists() and not args.overwrite:
        parser.error(f"{file} exists already; choose another --output, or replace it with --overwrite")
    return args


def prepare_results(args: argparse.Namespace, name: str) -> list[Path]:
    """Prepare ``--output`` for ``name.md`` and ``name.json``, made of ``name.jsonl``, which lets them be replaced."""
    overwrite = args.overwrite or (args.output / f"{name}.jsonl").is_file()
    return prepare_folder(args.output, [f"{name}.md", f"{name}.json"], overwrite=overwrite)


def prepare() -> None:
    """Give the process the settings that ``ppdiffusers-tome`` makes."""
    from ppdiffusers_tome.tools.console.process import prepare_process

    prepare_process(keep_memory=True)


def run_in_child(work: Callable[..., Any], *args: Any) -> Any:
    """Return ``work(*args)`` of a fresh Python; a ``MemoryError`` where the system ends it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare) as pool:
        try:
            return pool.submit(work, *args).result()
        except BrokenProcessPool as error:
            raise MemoryError from error


def iterate_in_child(work: Callable[..., Iterator[T]], *args: Any) -> Generator[T, None, None]:
    """Yield what ``work(*args)`` yields in a fresh Python, which waits until it is asked.

    Raises:
        MemoryError: the process ended.
    """
    context = multiprocessing.get_context("spawn")
    connection, end = context.Pipe()
    process = context.Process(target=_answer, args=(end, work, *args), daemon=True)
    process.start()
    end.close()  # so that the end of the process is the end of what it says
    try:
        while True:
            connection.send(None)
            yield connection.recv()
    except (EOFError, OSError) as error:
        raise MemoryError from error
    finally:
        process.kill()
        process.join()


def _answer(connection: Connection, work: Callable[..., Iterator[Any]], *args: Any) -> None:
    """Send the next result whenever the other process asks, until it ends."""
    prepare()
    results = work(*args)
    with contextlib.suppress(EOFError):
        while True:
            connection.recv()
            connection.send(next(results))


def machine() -> dict[str, Any]:
    """Describe the machine and the versions."""
    from ppdiffusers_tome.tools.measure.system import describe_machine

    return describe_machine()


def describe(values: Mapping[str, Any]) -> str:
    """Format values as ``name: value, name: value``."""
    return ", ".join(f"{name}: {value}" for name, value in values.items())


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1) -> str:
    """Format a Markdown table with ``left`` columns aligned to the left."""
    return Table(headings, rows, left=left).markdown()


def page(title: str, notes: Sequence[str], *tables: str) -> str:
    """Join a title, notes and tables in Markdown."""
    return "\n".join([f"# {title}", "", *(f"- {note}" for note in notes), "", *tables])


def write(args: argparse.Namespace, name: str, text: str, results: Mapping[str, Any]) -> None:
    """Print a page, and write ``name.md`` and ``name.json`` into ``--output``."""
    print(text)
    args.output.mkdir(parents=True, exist_ok=True)
    for ending, content in (("md", text), ("json", json.dumps(results, indent=2) + "\n")):
        file = args.output / f"{name}.{ending}"
        file.write_text(content, encoding="utf-8")
        print(file)


def replace_between(path: Path, begin: str, end: str, text: str) -> None:
    """Replace what a page has between two lines, each of which it has once."""
    before, rest = path.read_text(encoding="utf-8").split(begin)
    path.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}", encoding="utf-8")


def presets_by_strength() -> list[str]:
    """Return the presets, from the one that saves least."""
    return sorted(PRESETS, key=lambda name: ToMeConfig.preset(name).highest_ratio)

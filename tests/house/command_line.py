"""The pages of the command line, whose blocks are what the program's ``--help`` prints.

    python tests/house/command_line.py        # writes them anew, in every language
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # where the script's own folder stands instead

from ppdiffusers_tome.tools.cli.commands import commands  # noqa: E402
from ppdiffusers_tome.tools.cli.commands.benchmarks import benches  # noqa: E402
from ppdiffusers_tome.tools.cli.program import PROGRAM, main  # noqa: E402

PAGES = [path for path in (ROOT / "docs").glob("*/reference/command-line.md") if path.is_file()]
WIDTH = 80
_BLOCK = re.compile(rf"^```text\n\$ ({PROGRAM}[a-z -]*) --help\n.*?^```$", re.DOTALL | re.MULTILINE)


def every_command() -> list[str]:
    """The program and its commands, as they are called."""
    return [PROGRAM, *(f"{PROGRAM} {name}" for name in commands()), *(f"{PROGRAM} bench {name}" for name in benches())]


def shown_commands(page: str) -> list[str]:
    """The commands whose help a page shows."""
    return _BLOCK.findall(page)


def with_help(page: str) -> str:
    """The text of a page with what the program prints today in its blocks."""
    return _BLOCK.sub(lambda block: f"```text\n$ {block[1]} --help\n{_help(block[1])}\n```", page)


def _help(command: str) -> str:
    printed, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(WIDTH + 2)  # argparse leaves two
    try:
        with contextlib.redirect_stdout(printed):
            assert main([*command.split()[1:], "--help"]) == 0
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return "\n".join(line.rstrip() for line in printed.getvalue().rstrip().splitlines())


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_help(path.read_text(encoding="utf-8")), encoding="utf-8")

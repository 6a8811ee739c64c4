"""``ppdiffusers-tome bench``: cost and gain of token merging, measured in turns."""

from __future__ import annotations

from ppdiffusers_tome.tools.cli.commands.benchmarks import gpu, results
from ppdiffusers_tome.tools.console.parsing import Parser, add_commands

HELP = "Measure cost and speed-up of token merging, compared with ppdiffusers' own port."


def add_arguments(parser: Parser) -> None:
    add_commands(parser, {"gpu": gpu, "results": results}, "benchmark")

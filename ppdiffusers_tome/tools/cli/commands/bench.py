"""``ppdiffusers-tome bench``: what token merging costs and gains, measured side by side. One file a benchmark."""

from __future__ import annotations

from ppdiffusers_tome.tools.cli.commands.benchmarks import benches
from ppdiffusers_tome.tools.cli.console.parsing import Parser

HELP = "Measure cost and speed-up of token merging, compared with ppdiffusers' own port."


def add_arguments(parser: Parser) -> None:
    parsers = parser.add_commands(benches(), "BENCHMARK")
    usages = [each.format_usage().removeprefix("usage: ").replace("\n       ", "\n") for each in parsers]
    parser.epilog = "".join(usages)

"""``ppdiffusers-tome bench``: what token merging costs and gains, measured side by side. One file a benchmark."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any

from ppdiffusers_tome.tools.commands.benches import benches

HELP = "Measure what token merging costs and gains, beside ppdiffusers' own port."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    chosen = parser.add_subparsers(
        dest="benchmark", metavar="BENCHMARK", title="benchmarks", required=True, parser_class=_strict(type(parser))
    )
    parsers = []
    for name, module in benches().items():
        parsers.append(chosen.add_parser(
            name, help=module.HELP, description=module.HELP, epilog=module.EXAMPLES, allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        ))  # fmt: skip
        module.add_arguments(parsers[-1])
        parsers[-1].set_defaults(run_benchmark=module.run)
    usages = [each.format_usage().removeprefix("usage: ").replace("\n       ", "\n") for each in parsers]
    parser.epilog = "".join(usages)


def run(args: argparse.Namespace) -> int | None:
    return args.run_benchmark(args)


def _strict(parser_class: type[argparse.ArgumentParser]) -> type[argparse.ArgumentParser]:
    """The program's parser, but one that answers an unknown argument itself: it knows which ones are close."""

    class Strict(parser_class):  # type: ignore[valid-type, misc]
        def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
            found, unknown = super().parse_known_args(args, namespace)
            if unknown:
                known = [option for action in self._actions for option in action.option_strings]
                close = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1)
                remedy = f"; did you mean {close[0]}?" if close else ""
                self.error(f"{unknown[0]!r} is no argument of {self.prog.partition(' ')[2]}{remedy}")
            return found, unknown

    return Strict

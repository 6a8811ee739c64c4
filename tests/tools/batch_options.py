"""The options of ``generate --prompts`` as the command line makes them."""

from __future__ import annotations

import argparse
from pathlib import Path

from ppdiffusers_tome.tools.batch.options import BatchOptions
from ppdiffusers_tome.tools.cli.commands import generate


def make_options(prompts: Path, *arguments: str) -> BatchOptions:
    """Parse the arguments of a run that writes to ``outputs`` beside its prompts."""
    parser = argparse.ArgumentParser()
    generate.add_arguments(parser)
    given = ["--prompts", str(prompts), "--output", str(prompts.parent / "outputs"), *arguments]
    return BatchOptions.from_arguments(parser.parse_args(given))

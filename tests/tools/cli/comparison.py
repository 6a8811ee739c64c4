"""Helpers of the tests of ``compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ppdiffusers_tome.tools.cli.program import main
from tools.cli.conftest import SMALL

FILES = ["compare.json", "compare.jsonl", "compare.md", "compare.png", "images"]


def compare(folder: Path, *arguments: str) -> int:
    return main(["compare", *SMALL, "--output", str(folder), *arguments])


def read_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results by the name of the configuration."""
    content = json.loads((folder / "compare.json").read_text())
    return {row["configuration"]["name"]: row for row in content["configurations"]}

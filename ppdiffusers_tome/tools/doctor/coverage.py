"""The blocks that merge in every pipeline, found by tests/zoo."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ppdiffusers_tome.tools.console.tables import Table

FILE = Path(__file__).with_name("coverage.json")
# Pipelines that ppdiffusers has but does not export from its top level.
NOT_EXPORTED = {"HotshotXLPipeline": "ppdiffusers.pipelines.hotshot_xl.hotshot_xl_pipeline"}


@dataclass(frozen=True)
class PipelineCoverage:
    """The effect of token merging on a pipeline."""

    name: str  # of its class
    merges: bool
    where: str  # the denoisers and their blocks, or why nothing merges
    since: str = ""  # the first version of ppdiffusers that has it, if some supported ones do not


def read_coverage() -> list[PipelineCoverage]:
    """Read the pipelines that were inspected, sorted by name."""
    return [PipelineCoverage(**row) for row in json.loads(FILE.read_text(encoding="utf-8"))]


def inspect_installed(package: ModuleType) -> list[PipelineCoverage]:
    """Return the coverage of the exported pipelines; an uninspected one says so."""
    inspected = {pipeline.name: pipeline for pipeline in read_coverage()}
    unknown = "unknown to this version of ppdiffusers_tome; load it and try: ppdiffusers-tome doctor --model FOLDER"
    return [inspected.get(name) or PipelineCoverage(name, False, unknown) for name in list_pipelines(package)]


def list_pipelines(package: ModuleType) -> list[str]:
    """List the pipeline classes of ``ppdiffusers.pipelines`` without importing one."""
    exported = {name for names in package._import_structure.values() for name in names} | set(NOT_EXPORTED)
    pipelines = {name for name in exported if "Pipeline" in name and not name.endswith(("Output", "Mixin"))}
    return sorted(pipelines - {"DiffusionPipeline"})


def make_table(pipelines: Iterable[PipelineCoverage]) -> Table:
    """Make a table with a row for each pipeline."""
    rows = [(each.name, "yes" if each.merges else "no", each.where) for each in pipelines]
    return Table(("pipeline", "merges", "where, or why not"), rows, left=3)

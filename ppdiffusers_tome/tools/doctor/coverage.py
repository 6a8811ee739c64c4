"""Coverage: the blocks that merge in every pipeline of ppdiffusers, found by tests/zoo."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ppdiffusers_tome.tools.console.tables import Table
from ppdiffusers_tome.tools.doctor.environment import TESTED

FILE = Path(__file__).with_name("coverage.json")
# Since when a pipeline exists whose source bears the version before it.
NEWEST = "0.30"
# Pipelines that ppdiffusers has but does not export from its top level.
NOT_EXPORTED = {"HotshotXLPipeline": "ppdiffusers.pipelines.hotshot_xl.hotshot_xl_pipeline"}

_WHEEL, _SOURCE = TESTED[-2:]
_PAGE = f"""# Coverage

Every pipeline that ppdiffusers {_WHEEL} exports; `ppdiffusers-tome doctor --markdown` prints a row for each.
The blocks of a denoiser are read from a tiny real model of its kind, with the function that `apply_tome` uses.
The level is how many times smaller than the latent the finest grid of tokens is.
`max_downsample=None`, the default, merges at that level.

{{wheel}}
## What {_SOURCE} adds

ppdiffusers {_SOURCE}, from source ([FLUX, SD 3.5 and video](../guides/flux-and-video.md)), has all of the above and
these.

{{source}}
## What 0.30 adds

PaddleMIX 0.30's ppdiffusers, which calls itself {_SOURCE} too, has these.

{{newest}}"""


@dataclass(frozen=True)
class PipelineCoverage:
    """The effect of token merging on a pipeline.

    Attributes:
        name: the pipeline's class.
        merges: whether any of its denoisers merges.
        where: the denoisers and their blocks, or why nothing merges.
        since: the first version of ppdiffusers that has it; "" where all supported versions do.
    """

    name: str
    merges: bool
    where: str
    since: str = ""


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


def format_page() -> str:
    """Format the documentation's page on coverage."""
    pipelines = read_coverage()
    return _PAGE.format(
        wheel=_format_groups(each for each in pipelines if not each.since),
        source=_format_groups(each for each in pipelines if each.since not in ("", NEWEST)),
        newest=_format_groups(each for each in pipelines if each.since == NEWEST),
    )


def _format_groups(pipelines: Iterable[PipelineCoverage]) -> str:
    """Format a table with pipelines that are alike in one row."""
    names: dict[tuple[bool, str], list[str]] = {}
    for each in sorted(pipelines, key=lambda each: not each.merges):
        names.setdefault((each.merges, each.where), []).append(each.name)
    rows = [(where, "yes" if merges else "no", ", ".join(group)) for (merges, where), group in names.items()]
    return Table(("where, or why not", "merges", "pipelines"), rows, left=3).markdown()

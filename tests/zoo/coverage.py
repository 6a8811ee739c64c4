"""Coverage of every pipeline of ppdiffusers, read off the pipelines and the zoo.

    PYTHONPATH=tests python -m zoo.coverage

writes ``coverage.json`` beside this file again, for the rows of the ppdiffusers that is installed, and
``docs/en/reference/coverage.md``.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import typing
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import paddle

from ppdiffusers_tome.patching.blocks import find_blocks
from ppdiffusers_tome.patching.denoisers import REFUSED, find_refusal
from ppdiffusers_tome.patching.models import is_denoiser_name
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.console.tables import Table
from ppdiffusers_tome.tools.doctor.environment import TESTED
from zoo import Specimen, specimens

FILE = Path(__file__).with_name("coverage.json")
PAGE = Path(__file__).parents[2] / "docs" / "en" / "reference" / "coverage.md"
# Pipelines that ppdiffusers has but does not export from its top level.
NOT_EXPORTED = {"HotshotXLPipeline": "ppdiffusers.pipelines.hotshot_xl.hotshot_xl_pipeline"}
# Since when a pipeline exists whose source bears the version before it.
NEWEST = "0.30"
_WHEEL, _SOURCE = TESTED[-2:]
_PAGE = f"""# Coverage

Of the {{number}} pipelines that ppdiffusers {_WHEEL} exports, tokens merge in {{merging}}, as tiny models of their
classes show. Newer versions add {{newer}}; tokens merge in {{merging_newer}} of these.
Where tokens merge, [`cache=0.2`](../guides/settings.md) can skip steps, too, from 9 steps on. Where
nothing merges, `apply_tome` says why.

## Where nothing merges

{{refused}}
## Where tokens merge

The level is how many times smaller than the latent the finest grid of tokens is, where merging takes place by default.
Numbers in brackets are [notes](#notes).

{{wheel}}
## What {_SOURCE} adds

From [PaddleMIX's source](../guides/flux-and-video.md):

{{source}}
## What 0.30 adds

PaddleMIX 0.30's ppdiffusers calls itself {_SOURCE}, too:

{{newest}}
## Notes

{{notes}}"""

# SGD() gets two values for its learning rate.
_BROKEN = {"StableDiffusionPix2PixZeroPipeline": "ppdiffusers 0.29 itself cannot run it"}
# What a pipeline's denoiser is where its signature does not tell, or tells the class that it is made from.
_DENOISERS = {
    "AnimateDiffPipeline": {"unet": "UNetMotionModel"},
    "DDIMPipeline": {"unet": "UNet2DModel"},
    "DDPMPipeline": {"unet": "UNet2DModel"},
    "DanceDiffusionPipeline": {"unet": "UNet1DModel"},
    "LDMTextToImagePipeline": {"unet": "UNet2DConditionModel"},
    "RePaintPipeline": {"unet": "UNet2DModel"},
    "VersatileDiffusionPipeline": {"text_unet": "UNetFlatConditionModel"},
}
# Models beside the denoiser that are called once an image, or hold no attention.
_BESIDE = (
    "AudioLDM2ProjectionModel", "CLIPImageProjection", "MotionAdapter", "MultiAdapter", "ShapERenderer", "T2IAdapter",
    "LearnedClassifierFreeSamplingEmbeddings", "SpectrogramContEncoder", "SpectrogramNotesEncoder",
    "StableUnCLIPImageNormalizer", "UnCLIPTextProjModel", "UniDiffuserTextDecoder", "IFWatermarker",
)  # fmt: skip
# By the beginning of their names.
_OTHER = {
    "FluxPriorRedux": "makes embeddings of an image for another pipeline, and denoises nothing",
    "AutoPipelineFor": "stands for other pipelines and makes one of them; apply ToMe to that one",
    "PaddleInfer": "runs programs that were exported; apply ToMe before exporting them",
    "FastDeploy": "runs programs that were exported; apply ToMe before exporting them",
}


@dataclasses.dataclass(frozen=True)
class PipelineCoverage:
    """The effect of token merging on a pipeline."""

    name: str  # of its class
    merges: bool
    where: str  # the denoisers and their blocks, or why nothing merges
    since: str = ""  # the first version of ppdiffusers that has it, if some supported ones do not


def read_coverage() -> list[PipelineCoverage]:
    """Read the pipelines that were inspected, sorted by name."""
    return [PipelineCoverage(**row) for row in json.loads(FILE.read_text(encoding="utf-8"))]


def list_pipelines(package: ModuleType) -> list[str]:
    """List the pipeline classes of ``ppdiffusers.pipelines`` without importing one."""
    exported = {name for names in package._import_structure.values() for name in names} | set(NOT_EXPORTED)
    pipelines = {name for name in exported if "Pipeline" in name and not name.endswith(("Output", "Mixin"))}
    return sorted(pipelines - {"DiffusionPipeline"})


def coverage() -> list[PipelineCoverage]:
    """Every pipeline that ppdiffusers exports, by name.

    What a denoiser of a class holds is read off a tiny real model of it, in ``zoo``. A pipeline that is not known says
    so: ``unknown`` is in its ``where``.
    """
    import ppdiffusers.pipelines as package

    return [PipelineCoverage(name, *_cover_pipeline(name, package)) for name in list_pipelines(package)]


def _cover_pipeline(name: str, package: ModuleType) -> tuple[bool, str]:
    """Return whether anything merges, and where or why not."""
    other = next((reason for start, reason in _OTHER.items() if name.startswith(start)), None)
    if other or name in _BROKEN:
        return False, other or _BROKEN[name]
    try:
        cls = _import_pipeline(name, package)
    except Exception:  # whatever ppdiffusers' import ran into
        versions = f"Paddle {paddle.__version__} and paddlenlp {metadata.version('paddlenlp')}"
        return False, f"ppdiffusers cannot import it with {versions}"
    found = [(f"{part} ({model})", *_cover_denoiser(name, model)) for part, model in _denoisers(name, cls)]
    if any(merges for _, merges, _ in found):
        return True, "; ".join(f"{part}: {'' if merges else 'no, '}{where}" for part, merges, where in found)
    reasons = {f"{part}: {where}" for part, _, where in found}
    return False, "; ".join(sorted(reasons)) or "unknown: no denoiser was found"


def _import_pipeline(name: str, package: ModuleType) -> type:
    return getattr(importlib.import_module(NOT_EXPORTED[name]) if name in NOT_EXPORTED else package, name)


def list_specimens(name: str) -> list[Specimen | None]:
    """List what a pipeline's denoisers look like."""
    import ppdiffusers.pipelines as package

    return [_specimen(name, model) for _, model in _denoisers(name, _import_pipeline(name, package))]


def _denoisers(name: str, cls: type) -> Iterator[tuple[str, str]]:
    """The parts of a pipeline that may denoise, each with its class."""
    known = _DENOISERS.get(name, {})
    for part, parameter in inspect.signature(cls).parameters.items():
        if part in known:
            yield part, known[part]
            continue
        if not is_denoiser_name(part):
            continue
        named = [each for each in _classes(parameter.annotation) if _is_model(each) and each.__name__ not in _BESIDE]
        # A MultiControlNetModel is a list of what stands beside it.
        for each in [each for each in named if not each.__name__.startswith("Multi")][:1]:
            yield part, each.__name__


def _classes(annotation: Any) -> Iterator[type]:
    """The classes that an annotation names, also inside ``Union``, ``Optional`` and ``List``."""
    if isinstance(annotation, type):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _classes(argument)


def _is_model(cls: type) -> bool:
    """True for ppdiffusers' own models; text encoders and the like come from elsewhere."""
    return any(base.__name__ == "ModelMixin" for base in cls.__mro__)


def _cover_denoiser(pipeline: str, model_class: str) -> tuple[bool, str]:
    """Return whether a pipeline's model merges, and where or why not."""
    looks_like = _specimen(pipeline, model_class)
    if model_class in REFUSED or looks_like is None:
        return False, REFUSED.get(model_class, "unknown: ppdiffusers_tome has never seen this class")
    blocks, inside = _list_blocks(looks_like)
    if not blocks:
        return False, inside or "it has no attention on a grid"
    finest, note = min(level for _, level in blocks), f"; {looks_like.broken}" if looks_like.broken else ""
    return True, f"{', '.join(sorted({block for block, _ in blocks}))}, finest level {finest}{note}"


def _specimen(pipeline: str, model_class: str) -> Specimen | None:
    """Return the specimen for a pipeline's model, one that names the pipeline first."""
    same = [specimen for specimen in specimens() if specimen.model_class == model_class and specimen.is_there]
    special = [each for each in same if each.pipelines and re.fullmatch(each.pipelines, pipeline)]
    return next(iter(special + [each for each in same if each.pipelines == ""]), None)


@cache
def _list_blocks(specimen: Specimen) -> tuple[tuple[tuple[str, int], ...], str | None]:
    """Return the class and level of every mergeable block, or the reason for none."""
    model = specimen.build()
    blocks = [block for block in find_blocks(model) if block.list_points(ToMeConfig())]
    refusal = next(filter(None, map(find_refusal, model.sublayers(include_self=True))), None)
    return tuple((block.adapter.block_class, block.level) for block in blocks), refusal


def format_page() -> str:
    """Format the documentation's page on coverage."""
    pipelines, notes = read_coverage(), list[str]()
    exported = [each for each in pipelines if not each.since]
    merging = [each for each in exported if each.merges]
    tables = {
        "refused": _format_groups([each for each in exported if not each.merges], notes),
        "wheel": _format_groups(merging, notes),
        "source": _format_groups([each for each in pipelines if each.since not in ("", NEWEST)], notes),
        "newest": _format_groups([each for each in pipelines if each.since == NEWEST], notes),
    }
    counts = {"number": len(exported), "merging": len(merging), "newer": len(pipelines) - len(exported),
              "merging_newer": sum(each.merges for each in pipelines if each.since)}
    numbered = "".join(f"{number}. {note}\n" for number, note in enumerate(notes, 1))
    return _PAGE.format(**counts, **tables, notes=numbered)


def _format_groups(pipelines: Sequence[PipelineCoverage], notes: list[str]) -> str:
    """Format a table with similar pipelines in one row; add new notes.

    Those that merge come first.
    """
    names: dict[str, list[str]] = {}
    some_merge = any(each.merges for each in pipelines)
    for each in sorted(pipelines, key=lambda each: not each.merges):
        refusal = f"nothing merges: {each.where}" if some_merge else each.where
        where = _shorten(each.where, notes) if each.merges else refusal
        names.setdefault(where, []).append(each.name)
    rows = [(where, _join(group)) for where, group in names.items()]
    return Table(("where" if some_merge else "why", "pipelines"), rows, left=2).markdown()


def _join(names: list[str]) -> str:
    """Join names, those of exported programs as one."""
    return f"PaddleInfer*, {len(names)} pipelines" if names[0].startswith("PaddleInfer") else ", ".join(names)


def _shorten(where: str, notes: list[str]) -> str:
    """Return the denoisers and their levels: ``unet, level 2 [1]; prior does not merge``."""
    parts = []
    for denoiser in re.split(r"; (?=\w+ \(\w+\): )", where):
        found = re.fullmatch(r"(\w+) \(\w+\): (?:(no), .*|.*, finest level (\d)(?:; (.*))?)", denoiser)
        assert found is not None, denoiser
        part, refused, level, note = found.groups()
        if note and note not in notes:
            notes.append(note)
        number = f" [{notes.index(note) + 1}]" if note else ""
        parts.append(f"{part} does not merge" if refused else f"{part}, level {level}{number}")
    return "; ".join(parts)


def main() -> None:
    import ppdiffusers

    rows = {row.name: row for row in read_coverage()}
    newer = NEWEST if hasattr(ppdiffusers, "MochiPipeline") else ppdiffusers.__version__
    since = "" if ppdiffusers.__version__ in TESTED[:-1] else newer
    for row in coverage():
        rows[row.name] = dataclasses.replace(row, since=rows[row.name].since if row.name in rows else since)
    content = [
        {key: value for key, value in dataclasses.asdict(rows[name]).items() if value != ""} for name in sorted(rows)
    ]
    FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(format_page(), encoding="utf-8")


if __name__ == "__main__":
    main()

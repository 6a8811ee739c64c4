"""How ``visualize`` looks: the sheet of groups, the strip of ratios, the single pictures of both, and the numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from ppdiffusers_tome.attaching.watching import MergeRecord, MergingBlock
from ppdiffusers_tome.tools.figures.comparison import format_psnr
from ppdiffusers_tome.tools.figures.merging import groups_picture, merged_share, share_picture
from ppdiffusers_tome.tools.figures.sheet import Cell, Label, make_sheet
from ppdiffusers_tome.tools.measuring.similarity import Similarity, compare_pictures

# A column's label is as wide as its pictures: about this many characters.
_LINE = 36

ByBlock = Mapping[MergingBlock, Sequence[MergeRecord]]


def groups_sheet(
    run: Mapping[str, Any], picture: Image.Image, records: ByBlock, shown: Sequence[int], calls: int
) -> Image.Image:
    """Groups over the picture, a row a step and a column a block; in the last row how often each token merged.

    Args:
        run: what the studio describes.
        picture: the one that was watched.
        records: of the blocks to show.
        shown: calls of the denoiser to show, from 0.
        calls: how often it was called; some schedulers do more often than there are steps.
    """
    word = "step" if calls == run["steps"] else "call"
    plain = Cell(picture)
    rows = []
    for call in shown:
        at_call = [next((record for record in own if record.call == call), None) for own in records.values()]
        name = f"{word} {call + 1} of {calls}{_timestep(at_call)}"
        rows.append((name, [plain, *(_groups(picture, record) for record in at_call)]))
    rows.append(
        (
            f"all {calls} {word}s: the redder, the more often a token merged",
            [plain, *(_shares(picture, own, calls) for own in records.values())],
        )
    )
    title = Label(
        run["prompt"],
        (
            _described(run),
            "outlined: tokens that merged, each group in its mean colour and with an outline of its own colour; "
            "no outline: tokens that did not merge",
        ),
    )
    return make_sheet(title, [Label("the picture", _settings(run)), *map(_column, records)], rows)


def ratios_sheet(run: Mapping[str, Any], pictures: Mapping[float, Image.Image]) -> Image.Image:
    """One row: the picture at every ratio, with its likeness to the unmerged one, which comes first."""
    columns, cells = [], []
    for ratio, quality in _qualities(pictures).items():
        columns.append(Label("unmerged" if ratio == 0 else f"ratio {ratio:g}"))
        cells.append(Cell(pictures[ratio], "" if quality is None else _likeness(quality)))
    return make_sheet(Label("Token merging by ratio", (_described(run),)), columns, [(run["prompt"], cells)])


def single_pictures(
    picture: Image.Image, records: ByBlock, shown: Sequence[int], calls: int, pictures: Mapping[float, Image.Image]
) -> Iterator[tuple[str, int, Image.Image]]:
    """The pictures of both sheets with a tag and a step: the number of the call, from 1, or the ratio in percent."""
    for block, own in records.items():
        for record in own:
            if record.call in shown:
                yield f"groups/{_name(block)}", record.call + 1, groups_picture(picture, record)
        share = merged_share(own, calls)
        yield f"share of the calls/{_name(block)}", calls, share_picture(picture, own[0].grid, share)
    for ratio, at_ratio in pictures.items():
        yield "ratio in percent", round(100 * ratio), at_ratio


def numbers(records: Sequence[MergeRecord], pictures: Mapping[float, Image.Image]) -> dict[str, Any]:
    """Every record and every ratio as plain values. An infinite PSNR, of identical pictures, is null."""
    return {
        "merged": [
            {
                "denoiser": record.block.denoiser,
                "block": record.block.path,
                "level": record.block.level,
                "grid": [record.grid.height, record.grid.width],
                "call": record.call + 1,
                "timestep": record.timestep,
                "tokens": len(record.groups),
                "merged_away": record.num_merged,
                "unmerged": int((record.sizes == 1).sum()),
                "largest_group": int(record.sizes.max()),
            }
            for record in records
        ],
        "ratios": [
            {
                "ratio": ratio,
                "psnr_db": quality.psnr if quality is not None and math.isfinite(quality.psnr) else None,
                "ssim": None if quality is None else quality.ssim,
            }
            for ratio, quality in _qualities(pictures).items()
        ],
    }


def _qualities(pictures: Mapping[float, Image.Image]) -> dict[float, Similarity | None]:
    unmerged = np.asarray(pictures[0.0])
    return {
        ratio: compare_pictures(unmerged, np.asarray(picture)) if ratio else None for ratio, picture in pictures.items()
    }


def _groups(picture: Image.Image, record: MergeRecord | None) -> Cell:
    if record is None:
        return Cell(picture, "ran unmerged")
    alone = int((record.sizes == 1).sum())
    groups = len(record.sizes) - alone
    return Cell(
        groups_picture(picture, record),
        f"{groups} groups, largest {record.sizes.max()}; {alone} not merged",
    )


def _shares(picture: Image.Image, records: Sequence[MergeRecord], calls: int) -> Cell:
    share = merged_share(records, calls)
    return Cell(share_picture(picture, records[0].grid, share), f"{share.mean():.0%} of the tokens on average")


def _timestep(records: Sequence[MergeRecord | None]) -> str:
    timestep = next((record.timestep for record in records if record is not None), None)
    return "" if timestep is None else f", timestep {timestep:g}"


def _settings(run: Mapping[str, Any]) -> tuple[str, str]:
    """The ratio, which may be a ramp or differ by level, and the method."""
    ratio = run["ratio"]
    by_level = ratio if isinstance(ratio, dict) else {"": ratio}
    shares = []
    for level, share in by_level.items():
        ramp = " to ".join(f"{part:g}" for part in (share if isinstance(share, list) else [share]))
        shares.append(f"{ramp} at level {level}" if level else ramp)
    return f"ratio {', '.join(shares)}", f"method {run['tome']['method']}"


def _column(block: MergingBlock) -> Label:
    """Denoiser and level over the path, which is broken at its dots where it is long."""
    lines = [""]
    for part in block.path.split("."):
        longer = f"{lines[-1]}.{part}".lstrip(".")
        if lines[-1] and len(longer) > _LINE:
            lines.append(part)
        else:
            lines[-1] = longer
    return Label(f"{block.denoiser}, level {block.level}", tuple(lines))


def _name(block: MergingBlock) -> str:
    return f"{block.denoiser} level {block.level} {block.path}"


def _likeness(quality: Similarity) -> str:
    text = format_psnr(quality.psnr)
    return text if text == "identical" else f"PSNR {text} dB, SSIM {quality.ssim:.3f}"


def _described(run: Mapping[str, Any]) -> str:
    return (
        f"{run['model']} model, {run['width']}x{run['height']} pixels, {run['steps']} steps, {run['scheduler']}, "
        f"seed {run['seed']}"
    )

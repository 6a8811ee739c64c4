"""How a comparison looks: its title and notes, and the sheet of its pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from ppdiffusers_tome.tools.drawing.studio import device_name
from ppdiffusers_tome.tools.figures.comparison import PictureResult, SettingResult, format_psnr
from ppdiffusers_tome.tools.figures.sheet import Cell, Label, make_sheet
from ppdiffusers_tome.tools.measuring.units import format_bytes


def words(run: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The title and the notes that the sheet and the table share; ``run`` is what the studio describes."""
    versions = " · ".join(f"{name} {version}" for name, version in run["versions"].items())
    title = "Token merging" if run["controlnet"] is None else "Token merging with a ControlNet"
    return title, [
        f"{run['model']} model, {run['width']}x{run['height']} pixels, {run['steps']} steps, {run['scheduler']}, "
        f"guidance {run['guidance_scale']:g}, {run['dtype']} on {device_name()}",
        "seconds: the whole call of the pipeline after a warm-up, median over the prompts",
        f"peak memory: {run['memory']}, the most over the prompts; until the last denoising step, and with decoding",
        "PSNR and SSIM: against the unmerged picture from the same noise, median over the prompts",
        versions,
    ]


def sheet(
    title: str,
    notes: Sequence[str],
    edges: Image.Image | None,
    summary: Sequence[SettingResult],
    pictures: Sequence[tuple[PictureResult, Image.Image]],
) -> Image.Image:
    """All pictures: a row a prompt, a column a setting, and the edges on the left where there are any.

    Args:
        title, notes: from ``words``.
        edges: what guided the ControlNet.
        summary: by setting, in the order of the columns.
        pictures: prompt by prompt, each with every setting.
    """
    first = [] if edges is None else [Cell(edges)]
    rows = []
    for start in range(0, len(pictures), len(summary)):
        row = pictures[start : start + len(summary)]
        cells = [Cell(picture, _caption(result)) for result, picture in row]
        rows.append((row[0][0].prompt, [*first, *cells]))
    columns = [*([] if edges is None else [Label("edges")]), *map(_column, summary)]
    return make_sheet(Label(title, (notes[0], notes[-1])), columns, rows)


def _column(result: SettingResult) -> Label:
    memory = f"{format_bytes(result.denoising_peak_bytes)} denoising"
    if result.psnr is None:
        return Label(result.name, (f"{result.seconds:.2f} s", memory))
    likeness = _likeness(result.psnr)
    return Label(
        result.name, (f"{result.seconds:.2f} s · {result.speed_up:.2f}x the speed", f"{memory} · {likeness}")
    )


def _caption(result: PictureResult) -> str:
    if result.quality is None:
        return f"{result.seconds:.2f} s"
    return f"{result.seconds:.2f} s · {_likeness(result.quality.psnr)} · SSIM {result.quality.ssim:.3f}"


def _likeness(psnr: float) -> str:
    text = format_psnr(psnr)
    return text if text == "identical" else f"PSNR {text} dB"

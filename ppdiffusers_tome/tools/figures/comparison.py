"""What ``compare`` found out: a result a picture, summed up by settings, as a table for people and for programs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ppdiffusers_tome.tools.measuring.measure import highest
from ppdiffusers_tome.tools.measuring.similarity import Similarity
from ppdiffusers_tome.tools.measuring.units import format_bytes


@dataclass(frozen=True)
class PictureResult:
    """One picture.

    Attributes:
        prompt: what it shows.
        name, ratio: what was put on the pipeline, and how much that merges, as plain values; ratio 0 is unmerged.
        seconds: the whole call of the pipeline, decoding included.
        denoising_peak_bytes: most memory in use until the last denoising step was done, or None when that could not
            be measured.
        peak_bytes: the same for the whole call.
        quality: likeness to the unmerged picture; None for that picture itself.
    """

    prompt: str
    name: str
    ratio: Any
    seconds: float
    denoising_peak_bytes: int | None
    peak_bytes: int | None
    quality: Similarity | None


@dataclass(frozen=True)
class SettingResult:
    """All pictures of one setting: medians over the prompts, and the highest peak."""

    name: str
    ratio: Any
    seconds: float
    speed_up: float
    denoising_peak_bytes: int | None
    peak_bytes: int | None
    psnr: float | None
    ssim: float | None


def by_setting(pictures: Sequence[PictureResult]) -> list[SettingResult]:
    """Sum up by name, in the order in which they came; the unmerged pictures come first."""
    groups: dict[str, list[PictureResult]] = {}
    for picture in pictures:
        groups.setdefault(picture.name, []).append(picture)
    unmerged = statistics.median(picture.seconds for picture in groups[pictures[0].name])
    results = []
    for name, group in groups.items():
        seconds = statistics.median(picture.seconds for picture in group)
        qualities = [picture.quality for picture in group if picture.quality is not None]
        results.append(
            SettingResult(
                name=name,
                ratio=group[0].ratio,
                seconds=seconds,
                speed_up=unmerged / seconds,
                denoising_peak_bytes=highest(picture.denoising_peak_bytes for picture in group),
                peak_bytes=highest(picture.peak_bytes for picture in group),
                psnr=statistics.median(quality.psnr for quality in qualities) if qualities else None,
                ssim=statistics.median(quality.ssim for quality in qualities) if qualities else None,
            )
        )
    return results


def markdown(title: str, notes: Sequence[str], results: Sequence[SettingResult]) -> str:
    """The table as Markdown."""
    lines = [
        f"# {title}",
        "",
        *(f"- {note}" for note in notes),
        "",
        "| | seconds per image | speed-up | peak memory, denoising | peak memory, all | PSNR (dB) | SSIM |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        ssim = "-" if result.ssim is None else f"{result.ssim:.3f}"
        lines.append(
            f"| {result.name} | {result.seconds:.2f} | {result.speed_up:.2f}x "
            f"| {format_bytes(result.denoising_peak_bytes)} | {format_bytes(result.peak_bytes)} "
            f"| {format_psnr(result.psnr)} | {ssim} |"
        )
    return "\n".join(lines) + "\n"


def as_json(results: Sequence[SettingResult], pictures: Sequence[PictureResult]) -> dict[str, Any]:
    """Everything as plain values. An infinite PSNR, of identical pictures, is null beside an SSIM of 1."""
    return {
        "ratios": [
            {
                "name": result.name,
                "ratio": result.ratio,
                "seconds_per_image": result.seconds,
                "speed_up": result.speed_up,
                "denoising_peak_bytes": result.denoising_peak_bytes,
                "peak_bytes": result.peak_bytes,
                "psnr_db": _finite(result.psnr),
                "ssim": result.ssim,
            }
            for result in results
        ],
        "pictures": [
            {
                "prompt": picture.prompt,
                "name": picture.name,
                "ratio": picture.ratio,
                "seconds": picture.seconds,
                "denoising_peak_bytes": picture.denoising_peak_bytes,
                "peak_bytes": picture.peak_bytes,
                "psnr_db": _finite(picture.quality.psnr) if picture.quality else None,
                "ssim": picture.quality.ssim if picture.quality else None,
            }
            for picture in pictures
        ],
    }


def format_psnr(psnr: float | None) -> str:
    """``27.13`` -> ``27.1``; identical pictures have no finite one."""
    if psnr is None:
        return "-"
    return f"{psnr:.1f}" if math.isfinite(psnr) else "identical"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

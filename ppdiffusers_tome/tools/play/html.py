"""HTML for parts of the page that Gradio lacks, with the images inside."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

from ppdiffusers_tome.tools.measure.similarity import format_psnr
from ppdiffusers_tome.tools.measure.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.tools.play.studio import Comparison

Translate = Callable[..., str]  # from a key of ``WORDS`` and values to words of one language

_SLIDE = "this.parentNode.style.setProperty('--at',this.value+'%')"


def render_comparison(translate: Translate, comparison: Comparison) -> str:
    """Render both images under one slider, and their figures."""
    unmerged, merged, names = comparison.unmerged, comparison.merged, (translate("unmerged"), translate("merged"))
    similarity = merged.similarity
    assert similarity is not None
    tiles = {
        translate("speedup"): f"{unmerged.seconds / merged.seconds:.2f}x",
        "PSNR": translate("identical") if similarity.ssim == 1 else f"{format_psnr(similarity.psnr)} dB",
        "SSIM": f"{similarity.ssim:.3f}",
    }
    rows = {
        "": names,
        translate("seconds"): [format_seconds(image.seconds) for image in (unmerged, merged)],
        translate("memory"): [format_bytes(image.denoising_peak_bytes) for image in (unmerged, merged)],
    }
    notes = [translate(key, detail=detail) for key, detail in comparison.oddities.items()]
    notes += [translate("settings_note", settings=comparison.request.tome.summary), translate("measured_note")]
    if comparison.is_reused:
        notes.append(translate("reused_note"))
    shape = f"--shape:{unmerged.image.width}/{unmerged.image.height};--wide:{max(unmerged.image.width, 640)}px"
    table = "".join(f"<tr><th>{name}</th><td>{'</td><td>'.join(row)}</td></tr>" for name, row in rows.items())
    return (
        f'<div class="tome-pair" style="{shape}">{_img(merged.image, names[1])}{_img(unmerged.image, names[0])}'
        f'<b>{names[0]}</b><b>{names[1]}</b><i></i><input type="range" min="0" max="100" step="0.5" value="50" '
        f'aria-label="{translate("slider")}" oninput="{_SLIDE}"></div>'
        f'<div class="tome-tiles">{"".join(f"<div><b>{value}</b>{name}</div>" for name, value in tiles.items())}</div>'
        f"<table>{table}</table>{_notes(*notes)}"
    )


def render_unmerged(translate: Translate, image: Image.Image) -> str:
    """Render the unmerged image, which is ready before the merged one."""
    style = f"max-width:{max(image.width, 640)}px"
    return f'<div class="tome-first" style="{style}">{_img(image, translate("unmerged"))}</div>' + _notes(
        translate("merged_follows")
    )


def render_photo(translate: Translate, photo: Image.Image, edges: Image.Image) -> str:
    """Render an uploaded image beside its edges."""
    return f'<div class="tome-photo">{_img(photo, translate("guide"))}{_img(edges, translate("edges"))}</div>'


def _notes(*sentences: str) -> str:
    return "".join(f'<p class="tome-note">{escape(sentence)}</p>' for sentence in sentences)


def _img(image: Image.Image, description: str) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{data}">'

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

    from studio import ImagePair

Translate = Callable[..., str]  # from a key of ``WORDS`` and values to words of one language

_SLIDE = "this.parentNode.style.setProperty('--at',this.value+'%')"


def render_comparison(translate: Translate, comparison: ImagePair) -> str:
    """Render both images under one slider, and their figures."""
    images, names = (comparison.unmerged, comparison.merged), (translate("unmerged"), translate("merged"))
    before, after = images
    psnr, ssim = comparison.similarity
    rows = [
        ("", *names),
        (translate("seconds"), *(format_seconds(image.seconds) for image in images)),
        (translate("speedup"), "", f"{before.seconds / after.seconds:.2f}x"),
        (translate("memory"), *(format_bytes(image.denoising_peak_bytes) for image in images)),
        ("PSNR", "", translate("identical") if ssim == 1 else f"{format_psnr(psnr)} dB"),
        ("SSIM", "", f"{ssim:.3f}"),
    ]
    notes = [escape(translate(key, **values)) for key, values in comparison.notes]
    edges = "" if comparison.request.edges is None else _img(comparison.request.edges, translate("edges"))
    table = "".join(f"<tr><th>{name}</th><td>{left}</td><td>{right}</td></tr>" for name, left, right in rows)
    return (
        f'<div class="tome-pair" style="--shape:{before.image.width}/{before.image.height}">'
        f"{_img(after.image, names[1])}{_img(before.image, names[0])}<b>{names[0]}</b><b>{names[1]}</b><i></i>"
        f'<input type="range" step="0.5" value="50" aria-label="{translate("slider")}" oninput="{_SLIDE}"></div>'
        f"<table>{table}</table>{edges}{''.join(f'<p>{note}</p>' for note in notes)}"
    )


def render_unmerged(translate: Translate, image: Image.Image) -> str:
    """Render the unmerged image, which is ready before the other one."""
    return f'<div class="tome-first">{_img(image, translate("unmerged"))}</div><p>{translate("unmerged_shown")}</p>'


def _img(image: Image.Image, description: str) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{data}">'

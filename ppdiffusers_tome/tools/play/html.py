"""HTML for parts of the page that Gradio lacks, with the images inside."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from ppdiffusers_tome.tools.measure.similarity import format_psnr
from ppdiffusers_tome.tools.measure.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.tools.play.studio import Comparison

Translate = Callable[..., str]  # from a key of ``WORDS`` and values to words of one language

_SLIDE = "this.parentNode.style.setProperty('--at',this.value+'%')"
_SHOW_CALL = "for(const s of this.parentNode.querySelectorAll('section'))s.hidden=s.dataset.at!==this.value"


def render_comparison(translate: Translate, comparison: Comparison) -> str:
    """Render both images under one slider, their figures, and the map of merged tokens."""
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
        f"<table>{table}</table>{_notes(*notes)}{_map(translate, comparison)}"
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


def _map(translate: Translate, comparison: Comparison) -> str:
    """Render a section for each call of the denoiser, then the average."""
    if not comparison.request.with_map:
        return ""
    images, title = comparison.map_images, f"<h3>{translate('map_title')}</h3>"
    if not images:
        return f'<div class="tome-map">{title}{_notes(translate("map_none"))}</div>'
    sections, calls = [], max(image.call for image in images)
    in_order = sorted(images, key=lambda image: (image.call == 0, image.call))
    for number, (call, group) in enumerate(groupby(in_order, lambda image: image.call)):
        name = translate("map_step", call=call, calls=calls) if call else translate("map_average")
        figures = ""
        for each in group:
            tokens = {"merged": f"{each.num_merged:,}", "tokens": f"{each.num_tokens:,}"}
            caption = translate("map_caption", block=each.block, **tokens)
            figures += f"<figure>{_img(each.image, caption)}<figcaption>{escape(caption)}</figcaption></figure>"
        hidden = " hidden" if number else ""
        sections.append(f'<section data-at="{number}"{hidden}><h4>{name}</h4>{figures}</section>')
    return (
        f'<div class="tome-map">{title}<input type="range" min="0" max="{len(sections) - 1}" value="0" '
        f'aria-label="{translate("map_slider")}" oninput="{_SHOW_CALL}">{"".join(sections)}'
        f"{_notes(translate('map_note'))}</div>"
    )


def _notes(*sentences: str) -> str:
    return "".join(f'<p class="tome-note">{escape(sentence)}</p>' for sentence in sentences)


def _img(image: Image.Image, description: str) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{data}">'

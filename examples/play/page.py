"""The HTML of the page, and of the images in it."""

import base64
import inspect
import io
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from PIL import Image
from studio import GIVEN, MAX_BYTES, NONE, NUMBERS, OWN, ImagePair, Studio
from words import LANGUAGES, WORDS, translate

from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.presets import PRESETS
from ppdiffusers_tome.tools.console.tome_arguments import DEFAULT_PRESET
from ppdiffusers_tome.tools.measure.similarity import compare_images
from ppdiffusers_tome.tools.measure.system import get_device_name
from ppdiffusers_tome.tools.measure.units import format_bytes, format_seconds

_CACHE = 0.2  # where nothing merges
Translate = Callable[..., str]  # from a key of ``WORDS`` and its values to words of one language


def render_page(studio: Studio, language: str) -> str:
    """Render the page with what it begins with."""
    words, loaded = partial(translate, language), studio.plain
    settings, labels = loaded.settings, loaded.labels
    is_given = not settings.tome.changes_nothing
    # On a transformer of classes the cache keeps more than merging.
    preset = GIVEN if is_given else NONE if labels is not None else DEFAULT_PRESET
    presets = [GIVEN] * is_given + [*PRESETS, OWN, NONE]
    examples = settings.model.prompts if labels is None else labels.list_names()
    facts = [settings.model.label, get_device_name(), settings.dtype]
    facts += [words("compiled", precision=settings.compile)] if settings.compile else []
    facts += ["xformers"] if settings.xformers else []
    texts = {
        "language": LANGUAGES[language], "what": words("prompt" if labels is None else "class"),
        "merging_about": words("merging_info"), "facts": " · ".join(facts),
        "begin": json.dumps(_describe_form(studio, preset, has_examples=bool(examples))),
    }  # fmt: skip
    for key in WORDS:
        with suppress(KeyError):  # the others are of an image
            texts[key] = words(key, mebibytes=MAX_BYTES // 2**20)
    html = {
        "examples": "".join(f'<button type="button" class="example">{escape(text)}</button>' for text in examples),
        "presets": _render_choices("preset", presets, preset, words),
        "methods": _render_choices("method", METHODS, "tome", words),
    }  # fmt: skip
    page = Template(Path(__file__).with_name("page.html").read_text("utf-8"))
    return page.substitute({key: escape(text) for key, text in texts.items()} | html)


def _describe_form(studio: Studio, preset: str, *, has_examples: bool) -> dict[str, Any]:
    """Return what ``page.js`` writes into the form, and which parts it hides."""
    loaded = studio.plain
    settings, has_prompt, (height, width) = loaded.settings, loaded.labels is None, loaded.size
    values = {
        "prompt": studio.prompt, "negative_prompt": settings.negative_prompt or "", "seed": settings.seed,
        "steps": settings.steps, "guidance": loaded.guidance_scale, "height": height, "width": width,
        "low": 100, "high": 200, "strength": 1, "ratio": 0.5, "cache": _CACHE if preset == NONE else 0,
    }  # fmt: skip
    fields = {name: dict(zip(("min", "max", "step"), NUMBERS.get(name, ()), strict=False), value=value)
              for name, value in values.items()}  # fmt: skip
    takes_negative = has_prompt and "negative_prompt" in inspect.signature(loaded.pipe.__call__).parameters
    parts = {
        "size": has_prompt, "negative": takes_negative, "guide": studio.guided, "examples": has_examples,
        "known": settings.model.prompts, "cache": preset != GIVEN,
    }  # fmt: skip
    hidden = [name for name, is_shown in parts.items() if not is_shown]
    return {"fields": fields, "hidden": hidden, "cache": _CACHE, "most": MAX_BYTES}


def _render_choices(field: str, values: Iterable[str], chosen: str, words: Translate) -> str:
    """Render radio buttons; values that are no key of ``WORDS`` are names."""
    return "".join(
        f'<label class="choice"><input type="radio" name="{field}" value="{value}"'
        f"{' checked' if value == chosen else ''}>{words(value) if value in WORDS else value}</label>"
        for value in values
    )


def render_pair(words: Translate, pair: ImagePair) -> str:
    """Render both images under one slider, and their figures."""
    images, names = (pair.unmerged, pair.merged), (words("unmerged"), words("merged"))
    before, after = images
    psnr, ssim = compare_images(before.image, after.image)
    peaks = [image.denoising_peak_bytes for image in images]
    rows = [
        ("", *names),
        (words("seconds"), *(format_seconds(image.seconds) for image in images)),
        (words("speedup"), "", f"{before.seconds / after.seconds:.2f}x"),
        (words("memory"), *(words("not_measured") if size is None else format_bytes(size) for size in peaks)),
        ("PSNR", "", words("identical") if ssim == 1 else f"{psnr:.1f} dB"),
        ("SSIM", "", f"{ssim:.3f}"),
    ]
    table = "".join(f"<tr><th>{name}</th><td>{left}</td><td>{right}</td></tr>" for name, left, right in rows)
    notes = "".join(f"<p>{escape(words(key, **values))}</p>" for key, values in pair.notes)
    edges = "" if pair.edges is None else _render_image(pair.edges, words("edges"))
    return (
        f'<div class="tome-pair">{_render_image(after.image, names[1])}{_render_image(before.image, names[0])}'
        f"<b>{names[0]}</b><b>{names[1]}</b><i></i>"
        f'<input type="range" step="0.5" value="50" aria-label="{words("slider")}"></div>'
        f"<table>{table}</table>{edges}{notes}"
    )


def render_unmerged(words: Translate, image: Image.Image) -> str:
    """Render the unmerged image, which is ready before the other."""
    return f'<div class="tome-pair">{_render_image(image, words("unmerged"))}<b>{words("unmerged")}</b></div>'


def _render_image(image: Image.Image, description: str) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{data}">'

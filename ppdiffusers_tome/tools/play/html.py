"""The parts of the page that gradio has none for, as HTML: the slider, the figures, the map, how far the drawing is.

Pictures stand in the HTML itself, so they are nobody else's and no file of theirs is ever written or served. All that
people and models say is escaped.
"""

from __future__ import annotations

import base64
import io
import time
from html import escape
from typing import TYPE_CHECKING

from ppdiffusers_tome.tools.measure.similarity import format_psnr
from ppdiffusers_tome.tools.measure.units import format_bytes, format_seconds
from ppdiffusers_tome.tools.play.i18n.words import Words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from PIL import Image

    from ppdiffusers_tome.tools.generation.results import GeneratedImage
    from ppdiffusers_tome.tools.play.studio import MapPicture, MergedMap, Remembered

_THUMBNAIL = 256  # pixels
LARGE = "large"  # what the browser sends in place of a file that is
# A browser's own file input hands the file over as text, through a box of gradio's that nobody sees.
_CHOOSE = (
    "const i=this,f=i.files[0];if(f){const b=document.querySelector('#tome-photo textarea'),"
    "send=t=>{b.value=t;b.dispatchEvent(new Event('input',{bubbles:true}));i.value=''};"
    f"if(f.size>i.dataset.most)send('{LARGE}');"
    "else{const r=new FileReader();r.onload=()=>send(r.result);r.onerror=()=>send('?');r.readAsDataURL(f)}}"
)
_SLIDE = "this.parentNode.style.setProperty('--at',this.value+'%')"
_STEP = "for(const f of this.closest('.tome-map').querySelectorAll('section'))f.hidden=f.dataset.at!==this.value"


def address_of(picture: Image.Image) -> str:
    """A picture as a data URL, without loss."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def head(words: Words, model: str, others: Iterable[Words]) -> str:
    """What stands over everything: title, model, and the page in the other languages."""
    links = " ".join(f'<a href="../{other.code}/" lang="{other.code}">{other.name}</a>' for other in others)
    return (
        f'<header class="tome-head"><div><h1>{escape(words.title)}</h1><p>{escape(words.about_page)}</p></div>'
        f"<nav><span>{escape(model)}</span>{links}</nav></header>"
    )


def chooser(words: Words, most_bytes: int) -> str:
    """The browser's own choice of a file, which a person can also drop one on."""
    hint = words.choose_hint.format(most=most_bytes // 2**20)
    return (
        f'<label class="tome-choose"><b>{escape(words.choose)}</b><input type="file" accept="image/*" '
        f'data-most="{most_bytes}" onchange="{escape(_CHOOSE)}"><small>{escape(hint)}</small></label>'
    )


def note(text: str) -> str:
    """A sentence in small print."""
    return _lines([text])


def first_state(words: Words) -> str:
    """Where pictures are going to be."""
    panes = "".join(f"<span>{escape(name)}</span>" for name in (words.unmerged, words.merged))
    return (
        f'<div class="tome-first"><div class="tome-panes" aria-hidden="true">{panes}</div>'
        f"<h3>{escape(words.first)}</h3><p>{escape(words.first_steps)}</p></div>"
    )


def progress(words: Words, what: str, done: int, calls: int) -> str:
    """How far a drawing is; of one whose steps are not counted, ``calls`` is 0."""
    text, value = escape(what), ""
    if calls:
        text += f" · {escape(words.step.format(done=done, calls=calls))}"
        value = f' value="{done}" max="{calls}"'
    return f'<div class="tome-status" role="status"><span>{text}</span><progress{value}></progress></div>'


def message(text: str, kind: str = "done") -> str:
    """A sentence; ``kind`` is ``done`` or ``wrong``."""
    role = "alert" if kind == "wrong" else "status"
    return f'<div class="tome-status tome-{kind}" role="{role}"><span>{escape(text)}</span></div>'


def pair(words: Words, unmerged: GeneratedImage, merged: GeneratedImage | None) -> str:
    """The two pictures under one slider; the unmerged one alone until there is the other."""
    image = unmerged.image
    size = f"--shape:{image.width}/{image.height};--wide:{max(image.width, 640)}px"
    if merged is None:
        return (
            f'<div class="tome-pair tome-alone" style="{size}"><img alt="{escape(words.unmerged)}" '
            f'src="{address_of(image)}"><b class="tome-left">{escape(words.unmerged)}</b></div>'
        )
    return (
        f'<div class="tome-pair" style="{size}">'
        f'<img alt="{escape(words.merged)}" src="{address_of(merged.image)}">'
        f'<img class="tome-over" alt="{escape(words.unmerged)}" src="{address_of(image)}">'
        f'<b class="tome-left">{escape(words.unmerged)}</b><b class="tome-right">{escape(words.merged)}</b>'
        f'<i aria-hidden="true"></i>'
        f'<input type="range" min="0" max="100" value="50" step="0.5" aria-label="{escape(words.slide)}" '
        f'oninput="{_SLIDE}"></div>'
    )


def figures(
    words: Words, unmerged: Remembered, merged: GeneratedImage, *, settings: str, memory: str, remembered: bool,
    odd: Iterable[str],
) -> str:
    """What both pictures took, and how similar they are.

    Args:
        words: of the language.
        unmerged, merged: the pictures.
        settings: those of token merging, for people.
        memory: what is measured as memory.
        remembered: whether the unmerged picture was drawn for an earlier order.
        odd: sentences that a person should know.
    """
    before, similarity = unmerged.drawn, merged.similarity
    assert similarity is not None
    psnr = format_psnr(similarity.psnr)
    tiles = (
        (f"{before.seconds / merged.seconds:.2f}x", words.speed_up),
        (words.identical if psnr == "identical" else f"{psnr} dB", words.psnr),
        (f"{similarity.ssim:.3f}", words.ssim),
    )
    shown = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in tiles)
    rows = (
        (words.seconds, format_seconds(before.seconds), format_seconds(merged.seconds)),
        (words.memory, _bytes(words, before), _bytes(words, merged)),
    )
    table = "".join(f"<tr><th>{escape(name)}</th><td>{one}</td><td>{other}</td></tr>" for name, one, other in rows)
    notes = [words.settings_line.format(settings=settings), words.compared.format(memory=memory)]
    if remembered:
        notes.append(words.remembered.format(time=time.strftime("%H:%M:%S", time.localtime(unmerged.at))))
    return (
        f'<div class="tome-figures"><div class="tome-tiles">{shown}</div><table><thead><tr><td></td>'
        f"<th>{escape(words.unmerged)}</th><th>{escape(words.merged)}</th></tr></thead><tbody>{table}"
        f"</tbody></table>{_lines(odd, 'tome-odd')}{_lines(notes)}</div>"
    )


def map_of(words: Words, merged: MergedMap | None) -> str:
    """Which tokens merged, a step at a time under a slider; in words where none did."""
    title = f"<h3>{escape(words.map_title)}</h3>"
    if merged is None:
        return f'<div class="tome-map">{title}{_lines([words.map_none])}</div>'
    sections = [
        _section(words, number, words.map_step.format(call=call, calls=merged.calls), pictures, words.merged_away)
        for number, (call, pictures) in enumerate(merged.by_call.items())
    ]
    last = len(sections)
    sections.append(_section(words, last, words.map_often, merged.often, words.merged_away_often))
    return (
        f'<div class="tome-map">{title}<input type="range" min="0" max="{last}" value="0" '
        f'aria-label="{escape(words.map_slide)}" oninput="{_STEP}">{"".join(sections)}{_lines([words.map_explained])}'
        "</div>"
    )


def guide(words: Words, photo: Image.Image, edges: Image.Image) -> str:
    """A picture that was handed over, and its edges."""
    figures = "".join(
        f'<figure><img alt="{escape(name)}" src="{address_of(_thumbnail(picture))}">'
        f"<figcaption>{escape(name)}</figcaption></figure>"
        for name, picture in ((words.photo, photo), (words.edges, edges))
    )
    return f'<div class="tome-guide">{figures}</div>{_lines([words.photo_kept])}'


def _section(words: Words, number: int, title: str, pictures: Iterable[MapPicture], caption: str) -> str:
    shown = "".join(_figure(words, picture, caption) for picture in pictures)
    hidden = "" if number == 0 else " hidden"
    blocks = f'<div class="tome-blocks">{shown}</div>'
    return f'<section data-at="{number}"{hidden}><h4>{escape(title)}</h4>{blocks}</section>'


def _figure(words: Words, shown: MapPicture, caption: str) -> str:
    name = words.level.format(denoiser=shown.block.denoiser, level=shown.block.level)
    said = words.ran_unmerged
    picture = ""
    if shown.picture is not None:
        said = caption.format(merged=f"{shown.merged_away:,}", tokens=f"{shown.tokens:,}")
        picture = f'<img alt="{escape(name)}" src="{address_of(shown.picture)}">'
    return f"<figure>{picture}<figcaption><b>{escape(name)}</b> {escape(said)}</figcaption></figure>"


def _bytes(words: Words, drawn: GeneratedImage) -> str:
    size = drawn.denoising_peak_bytes
    return escape(words.not_measured) if size is None else format_bytes(size)


def _lines(sentences: Iterable[str], kind: str = "tome-note") -> str:
    return "".join(f'<p class="{kind}">{escape(sentence)}</p>' for sentence in sentences)


def _thumbnail(picture: Image.Image) -> Image.Image:
    small = picture.copy()
    small.thumbnail((_THUMBNAIL, _THUMBNAIL))
    return small

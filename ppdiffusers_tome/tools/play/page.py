"""The layout of the page, and what its buttons do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import presets
from ppdiffusers_tome.tools.generation.device import get_device_name
from ppdiffusers_tome.tools.generation.settings import SIZE_MULTIPLE
<<<<<<< HEAD
from ppdiffusers_tome.tools.measure.memory import explain_peak
from ppdiffusers_tome.tools.play import html
from ppdiffusers_tome.tools.play.i18n import LANGUAGES
from ppdiffusers_tome.tools.play.i18n.words import Words
from ppdiffusers_tome.tools.play.jobs import WAITING, Job, Line
from ppdiffusers_tome.tools.play.photos import MOST_BYTES, read_photo
from ppdiffusers_tome.tools.play.requests import (
    MOST_SEED,
    MOST_STEPS,
    OWN,
    Order,
    RefusedError,
    Wanted,
    guide_from,
    prompt_from,
    scale,
    side,
    tome_from,
    whole_number,
)
from ppdiffusers_tome.tools.play.sessions import Desk, Desks
from ppdiffusers_tome.tools.play.studio import MAP, MERGED, UNMERGED, WARMING_UP, Studio, edges_of
=======
from ppdiffusers_tome.tools.play.html import render_comparison, render_photo
from ppdiffusers_tome.tools.play.i18n import CHINESE, WORDS, choose_language, translate
from ppdiffusers_tome.tools.play.requests import FORMATS, MAX_BYTES, OWN, RefusedError, read_photo
from ppdiffusers_tome.tools.play.studio import Comparison, Request, Studio
>>>>>>> 94f17ba (The page, rewritten on Gradio's own state, files, progress and errors: one page in two languages, times estimated beforehand, paths of the machine are no uploads)

_HIDDEN: dict[str, Any] = {"show_progress": "hidden", "show_api": False}
_MAX_SESSIONS = 32
_UPLOAD_SECONDS = 60  # until an uploaded file, which is read at once, is deleted


class _Blocks(gr.Blocks):
    """Blocks that download no address which a user sends in place of an uploaded file."""

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *args: Any) -> list[Any]:
        if '"path": "http' in json.dumps(inputs):
            raise gr.Error("an address is no upload", print_exception=False)
        return await super().preprocess_data(block_fn, inputs, *args)


class Page:
    """The page of a studio, whose attribute ``blocks`` Gradio serves to all users.

    Args:
        studio: generates the images.
        examples: prompts to try.
        language: a key of ``WORDS``; None for the browser's.
    """

    def __init__(self, studio: Studio, examples: Sequence[str], language: str | None) -> None:
        self._studio, self._language = studio, language
        self._words: dict[Any, dict[str, str]] = {}  # keys of ``WORDS`` by component and attribute
        self._form: dict[str, Any] = {}
        self._cancelled: dict[str | None, threading.Event] = {}  # by session
        theme = gr.themes.Default(
            primary_hue="blue", neutral_hue="slate",
            font=[gr.themes.Font("system-ui"), gr.themes.Font("sans-serif")],  # others come from the network
            font_mono=[gr.themes.Font("ui-monospace"), gr.themes.Font("monospace")],
        )  # fmt: skip
        self.blocks = _Blocks(
            theme=theme, css_paths=Path(__file__).with_name("style.css"), title="Token merging",
            analytics_enabled=False, delete_cache=(_UPLOAD_SECONDS, _UPLOAD_SECONDS),
        )  # fmt: skip
        self.blocks.has_launched = True  # or Gradio accepts any path of this machine as an upload
        self.blocks.state_session_capacity = _MAX_SESSIONS
        self.blocks.queue(default_concurrency_limit=None, api_open=False)  # the studio has a queue
        with self.blocks:
            header = gr.Markdown(elem_id="tome-header")
            with gr.Row(elem_id="tome-columns"):
                with gr.Column(scale=2, min_width=300):
                    self._lay_out_form(examples)
                    file, preview = self._lay_out_guide()
                    with gr.Row():
                        generate = self._add(gr.Button(variant="primary", elem_id="tome-generate"), value="generate")
                        cancel = self._add(gr.Button(interactive=False, elem_id="tome-cancel"), value="cancel")
                    estimate = gr.HTML(elem_id="tome-estimate", padding=False)
                with gr.Column(scale=3, min_width=300):
                    result = gr.HTML(elem_id="tome-result", padding=False)
            self._connect(header, file, preview, generate, cancel, estimate, result)

    def close(self) -> None:
        """End what is being generated after its current step."""
        for cancelled in self._cancelled.values():
            cancelled.set()
        self._studio.close()

    def _add(self, component: Any, field: str | None = None, **words: str) -> Any:
        """Translate attributes of a component when the page is loaded; make it a field of the form."""
        self._words[component] = words
        if field is not None:
            self._form[field] = component
        return component

    def _lay_out_form(self, examples: Sequence[str]) -> None:
        loaded, usual = self._studio.plain, ToMeConfig()
        if loaded.labels is None:
            prompt = self._add(gr.Textbox(self._studio.prompt, lines=2, max_lines=6), "prompt", label="prompt")
            self._add(gr.Examples([[example] for example in examples], prompt).dataset, label="examples")
        else:
            names = loaded.labels.list_names()
            self._add(gr.Dropdown(names, value=self._studio.prompt, allow_custom_value=True), "prompt", label="class")
        names = sorted(presets(), key=lambda name: ToMeConfig.named(name).highest_ratio(1))
        preset = self._add(gr.Radio([*names, OWN], value="balanced", elem_id="tome-preset"), "preset", label="merging")
        with gr.Group(visible=False) as own:
            self._add(gr.Dropdown([*METHODS], value=usual.method), "method", label="method")
            self._add(gr.Slider(0.05, 0.75, usual.ratio, step=0.05), "ratio", label="ratio", info="ratio_info")
            self._add(gr.Checkbox(True), "with_map", label="with_map")
        preset.change(lambda name: gr.update(visible=name == OWN), preset, own, **_HIDDEN)
        with self._add(gr.Accordion(open=False), label="options"):
            with gr.Row():
                self._add_number("seed", loaded.settings.seed, precision=0)
                self._add_number("steps", loaded.settings.steps, precision=0)
                self._add_number("guidance", loaded.guidance_scale, step=0.5)
            with gr.Row(visible=loaded.labels is None):
                self._add_number("width", loaded.width, step=SIZE_MULTIPLE)
                self._add_number("height", loaded.height, step=SIZE_MULTIPLE)
            negative_prompt = gr.Textbox(loaded.settings.negative_prompt, visible=loaded.labels is None)
            self._add(negative_prompt, "negative_prompt", label="negative_prompt")

    def _lay_out_guide(self) -> tuple[Any, Any]:
        accordion = gr.Accordion(open=False, visible=self._studio.guided is not None, elem_id="tome-guide")
        with self._add(accordion, label="guide"):
            file = self._add(gr.File(type="binary", file_types=["image"], height=140), label="photo")
            preview = gr.HTML(padding=False)
            with gr.Row():
                self._add_number("low", 100, step=10)
                self._add_number("high", 200, step=10)
                self._add_number("strength", 1, step=0.1)
        return file, preview

    def _add_number(self, field: str, value: float, **options: Any) -> None:
        self._add(gr.Number(value, min_width=110, **options), field, label=field)

    def _connect(
        self, header: Any, file: Any, preview: Any, generate: Any, cancel: Any, estimate: Any, result: Any
    ) -> None:
        language, photo, request, comparison = gr.State("en"), gr.State(), gr.State(), gr.State()
        has_photo = gr.Checkbox(False, visible=False)  # what the browser shows, as the state may be lost
        form, buttons = [*self._form.values()], [generate, cancel]
        self.blocks.load(self._translate, None, [language, header, result, *self._words], **_HIDDEN).then(
            self._estimate, [language, *form], estimate, **_HIDDEN
        )
        for field in ("height", "width", "steps"):
            self._form[field].change(self._estimate, [language, *form], estimate, **_HIDDEN)
        shown = {"inputs": [language, photo, *form], "outputs": preview, **_HIDDEN}
        file.upload(self._read_photo, [language, file], [photo, has_photo], **_HIDDEN).success(self._preview, **shown)
        file.clear(lambda: (None, False, ""), None, [photo, has_photo, preview], **_HIDDEN)
        for field in ("low", "high"):
            self._form[field].change(self._preview, **shown)
        running = generate.click(
            self._prepare, [language, photo, has_photo, *form], [request, *buttons], **_HIDDEN
        ).success(
            self._generate, [language, request, comparison], [result, comparison], show_api=False
        )
        running.then(partial(_set_buttons, is_running=False), None, buttons, **_HIDDEN)
        cancel.click(self._cancel, None, None, **_HIDDEN)
        self.blocks.unload(self._forget)

    def _translate(self, request: gr.Request) -> list[Any]:
        """Return the language, the header, the first result and the words of all components."""
        language = request.query_params.get("language")
        if language not in WORDS:
            language = self._language or choose_language(request.headers.get("accept-language", ""))
        words, settings = partial(translate, language), self._studio.plain.settings
        values = {"formats": ", ".join(FORMATS), "mebibytes": MAX_BYTES // 2**20}
        updates: dict[Any, dict[str, Any]] = {
            component: {attribute: words(key, **values) for attribute, key in keys.items()}
            for component, keys in self._words.items()
        }
        names = {OWN: words("own")} | {name: f"{name}: {method.about}" for name, method in METHODS.items()}
        names |= CHINESE if language == "zh" else {}
        for field in ("preset", "method"):
            component = self._form[field]
            updates[component]["choices"] = [(names.get(name, name), name) for _, name in component.choices]
        header = words("header", model=settings.model.name, device=get_device_name(), dtype=settings.dtype)
        first = f"<p>{words('first')}</p>"
        return [language, header, first, *(gr.update(**update) for update in updates.values())]

    def _estimate(self, language: str, *values: Any) -> str:
        form = dict(zip(self._form, values, strict=True))
        try:
            seconds = self._studio.estimate_seconds(form["height"], form["width"], form["steps"])
        except TypeError:  # an empty field
            return ""
        if seconds is None:
            return ""
        time = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
        return f'<p class="tome-note">{translate(language, "estimate", time=time)}</p>'

    def _read_photo(self, language: str, content: bytes) -> tuple[Any, bool]:
        with _refusals_as_errors(language):
            return read_photo(content), True

    def _preview(self, language: str, photo: Any, *values: Any) -> str:
        if photo is None:
            return ""
        with _refusals_as_errors(language):
            edges = self._studio.find_edges(photo, dict(zip(self._form, values, strict=True)))
            return render_photo(partial(translate, language), photo, edges)

    def _prepare(
        self, user: gr.Request, language: str, photo: Any, has_photo: bool, *values: Any
    ) -> list[Any]:
        with _refusals_as_errors(language):
            if has_photo and photo is None:
                raise RefusedError("lost_photo")
            request = self._studio.prepare(dict(zip(self._form, values, strict=True)), photo)
        self._cancelled[user.session_hash] = threading.Event()
        return [request, *_set_buttons(is_running=True)]

    def _generate(
        self, language: str, request: Request, previous: Comparison | None, user: gr.Request,
        progress: gr.Progress = gr.Progress(),  # noqa: B008  how Gradio finds it
    ) -> list[Any]:  # fmt: skip
        words = partial(translate, language)

        def report(stage: str, done: int, calls: int) -> None:
            progress((done, calls) if calls else 0, desc=words(stage, done=done), unit=words("calls"))

        cancelled = self._cancelled.get(user.session_hash, threading.Event())
        with _refusals_as_errors(language):
            try:
                comparison = self._studio.compare(request, previous, report, cancelled)
            except CancelledError:
                gr.Info(words("cancelled"))
                return [gr.skip(), gr.skip()]
        return [render_comparison(words, comparison), comparison]

    def _cancel(self, user: gr.Request) -> None:
        self._cancelled.pop(user.session_hash, threading.Event()).set()

    def _forget(self, user: gr.Request) -> None:
        """Drop the images of a page that is closed, which Gradio would keep for an hour."""
        self._cancel(user)
        self.blocks.state_holder.session_data.pop(user.session_hash, None)


def _set_buttons(*, is_running: bool) -> list[Any]:
    return [gr.update(interactive=not is_running), gr.update(interactive=is_running)]


@contextmanager
def _refusals_as_errors(language: str) -> Iterator[None]:
    """Show refusals in the user's language."""
    try:
<<<<<<< HEAD
        yield room
    finally:
        room.line.close()


def make_pages(room: Room) -> dict[str, gr.Blocks]:
    """The page by the codes of its languages."""
    return {code: _Page(room, words).blocks for code, words in LANGUAGES.items()}


class _Page:
    """One language's page; its methods are what buttons do."""

    def __init__(self, room: Room, words: Words) -> None:
        self._room, self._words, self._studio = room, words, room.studio
        theme = gr.themes.Default(
            primary_hue="blue", neutral_hue="slate", radius_size="md",
            font=[gr.themes.Font("system-ui"), gr.themes.Font("sans-serif")],  # others would come from elsewhere
            font_mono=[gr.themes.Font("ui-monospace"), gr.themes.Font("monospace")],
        )  # fmt: skip
        css = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
        self.blocks = gr.Blocks(theme=theme, css=css, title=words.title, analytics_enabled=False)
        # Whoever draws waits in the room's own line, so no button waits for another here.
        self.blocks.queue(default_concurrency_limit=None, api_open=False)
        with self.blocks:
            self._lay_out()
            self.blocks.unload(self._leave)

    def _lay_out(self) -> None:
        words, loaded = self._words, self._studio.plain
        model = words.model_line.format(
            model=loaded.settings.model.name, device=get_device_name(), dtype=loaded.settings.dtype
        )
        others = [other for other in LANGUAGES.values() if other is not words]
        gr.HTML(html.head(words, model, others), padding=False)
        with gr.Row(elem_id="tome-columns"):
            with gr.Column(scale=2, min_width=300, elem_id="tome-asked"):
                asked = [self._subject(), *self._merging(), *self._picture(), *self._guide()]
                with gr.Row(elem_id="tome-buttons"):
                    draw = gr.Button(words.draw, variant="primary", elem_id="tome-draw")
                    cancel = gr.Button(words.cancel, interactive=False, elem_id="tome-cancel")
            with gr.Column(scale=3, min_width=300):
                status = gr.HTML(elem_id="tome-status", padding=False)
                result = gr.HTML(html.first_state(words), elem_id="tome-result", padding=False)
                figures = gr.HTML(elem_id="tome-figures", padding=False)
                merged_map = gr.HTML(elem_id="tome-map", padding=False)
        _on(draw.click, self._draw, asked, [status, result, figures, merged_map, draw, cancel], "draw")
        _on(cancel.click, self._cancel, [], [], "cancel")

    def _subject(self) -> Any:
        """What to draw: a prompt, or a class."""
        words, labels = self._words, self._studio.plain.labels
        begin = self._studio.prompt
        if labels is not None:
            names = labels.list_names()
            return gr.Dropdown(
                names, value=begin, allow_custom_value=True, label=words.class_label, info=words.class_hint
            )
        prompt = gr.Textbox(begin, label=words.prompt, lines=2, max_lines=6, elem_id="tome-prompt")
        if self._room.examples:
            with gr.Row(elem_id="tome-examples"):
                for example in self._room.examples:
                    button = gr.Button(example, size="sm", min_width=0)
                    button.click(_saying(example), None, prompt, show_api=False, show_progress="hidden")
        return prompt

    def _merging(self) -> list[Any]:
        words, usual = self._words, ToMeConfig()
        mildest_first = sorted(presets(), key=lambda name: ToMeConfig.named(name).highest_ratio(1))
        choices = [*((words.presets.get(name, name), name) for name in mildest_first), (words.own, OWN)]
        preset = gr.Radio(choices, value=_FIRST_PRESET, label=words.merging, elem_id="tome-preset")
        with gr.Group(visible=False, elem_id="tome-own") as own:
            about = {name: words.about.get(name, method.about) for name, method in METHODS.items()}
            method = gr.Dropdown(list(about), value=usual.method, label=words.method, info=about[usual.method])
            ratio = gr.Slider(0.05, 0.75, usual.ratio, step=0.05, label=words.ratio, info=words.ratio_hint)
            with_map = gr.Checkbox(True, label=words.with_map)
        shows = {"show_api": False, "show_progress": "hidden"}
        preset.change(lambda chosen: gr.update(visible=chosen == OWN), preset, own, **shows)
        method.change(
            lambda chosen: [gr.update(info=about[chosen]), gr.update(visible=METHODS[chosen].compares)],
            method, [method, with_map], **shows,
        )  # fmt: skip
        return [preset, method, ratio, with_map]

    def _picture(self) -> list[Any]:
        words, loaded = self._words, self._studio.plain
        sized = loaded.labels is None
        with gr.Accordion(words.picture, open=False):
            with gr.Row():
                seed = gr.Number(loaded.settings.seed, label=words.seed, precision=None, min_width=120)
                steps = gr.Number(loaded.settings.steps, label=words.steps, precision=None, min_width=120)
                guidance = gr.Number(loaded.guidance_scale, label=words.guidance, step=0.5, min_width=120)
            with gr.Row(visible=sized):
                width = gr.Number(loaded.width, label=words.width, step=SIZE_MULTIPLE, min_width=120)
                height = gr.Number(loaded.height, label=words.height, step=SIZE_MULTIPLE, min_width=120)
            if not sized:
                gr.HTML(html.note(words.fixed_size.format(width=loaded.width, height=loaded.height)), padding=False)
            kept_out = loaded.settings.negative_prompt or ""
            negative = gr.Textbox(kept_out, label=words.negative_prompt, max_lines=4, visible=sized)
        return [seed, width, height, steps, guidance, negative]

    def _guide(self) -> list[Any]:
        words = self._words
        with gr.Accordion(words.guide, open=False, visible=self._studio.guided is not None, elem_id="tome-guide"):
            gr.HTML(html.chooser(words, MOST_BYTES), padding=False)
            box = gr.Textbox("", elem_id="tome-photo", show_label=False, container=False)
            said = gr.HTML(padding=False)
            remove = gr.Button(words.remove, size="sm", visible=False)
            showing = gr.Checkbox(False, visible=False)  # whether this page shows a picture that was chosen
            with gr.Row():
                low = gr.Number(100, label=words.low, step=10, min_width=120)
                high = gr.Number(200, label=words.high, step=10, min_width=120)
                strength = gr.Number(1, label=words.strength, step=0.1, min_width=120)
        # Not through gradio's queue, which keeps all that it was ever given.
        _on(box.input, self._take, [box, low, high], [box, said, remove, showing], "photo", queue=False)
        _on(remove.click, self._remove, [], [said, remove, showing], "remove")
        for threshold in (low, high):
            _on(threshold.change, self._preview, [low, high], [said], False)
        return [low, high, strength, showing]

    async def _draw(
        self, prompt: Any, preset: Any, method: Any, ratio: Any, with_map: Any, seed: Any, width: Any, height: Any,
        steps: Any, guidance: Any, negative: Any, low: Any, high: Any, strength: Any,
        showing: Any, request: gr.Request,
    ) -> AsyncIterator[list[Any]]:  # fmt: skip
        """Draw both pictures, saying how far they are."""
        desk = self._room.desks.of(_session(request))
        try:
            labels = self._studio.plain.labels
            prompt, kept_out = prompt_from(prompt, labels), str(negative or "").strip() or None
            guide = None
            if showing and desk.photo is None:
                raise RefusedError("lost_photo")
            if desk.photo is not None and self._studio.guided is not None:
                guide = guide_from(desk.photo, low, high, strength)
            wanted = Wanted(
                prompt, kept_out, whole_number("seed", seed, 0, MOST_SEED), side("height", height),
                side("width", width), whole_number("steps", steps, 1, MOST_STEPS), scale("guidance", guidance), guide,
            )  # fmt: skip
            order = Order(wanted, tome_from(preset, method, ratio), preset == OWN and bool(with_map))
            self._studio.check(order)
            if desk.job is not None:
                desk.job.cancel()
            job = Job(order, desk.unmerged(wanted))
            self._room.line.add(job)
        except RefusedError as refused:
            yield [html.message(self._words.refusal(refused), "wrong"), *[gr.skip()] * 5]
            return
        desk.job = job
        try:
            async for parts in self._watch(job, desk):
                yield parts
        finally:
            job.cancel()  # the browser may be gone

    async def _watch(self, job: Job, desk: Desk) -> AsyncIterator[list[Any]]:
        """What the page shows of a job: status, pictures, figures, map and both buttons, as they change.

        Where another press of the button has put a job in its place, the page shows that one's alone.
        """
        view = _View(self._words, self._studio, job, self._room.line)
        running = [gr.update(interactive=False), gr.update(interactive=True)]
        while not job.over:
            parts = await asyncio.to_thread(view.changes)
            if parts is not None and desk.job is job:
                yield [*parts, *running]
                running = [gr.skip()] * 2
            await asyncio.sleep(_LOOK)
        last = await asyncio.to_thread(view.last)
        if desk.job is not job:
            return
        yield [*last, gr.update(interactive=True), gr.update(interactive=False)]

    def _cancel(self, request: gr.Request) -> None:
        desk = self._room.desks.of(_session(request))
        if desk.job is not None:
            desk.job.cancel()

    def _take(self, box: Any, low: Any, high: Any, request: gr.Request) -> list[Any]:
        """Keep a picture that was chosen, and show its edges; the box is empty again, for the next."""
        desk = self._room.desks.of(_session(request))
        try:
            if box == html.LARGE:
                raise RefusedError("large_file", most=MOST_BYTES // 2**20)
            desk.photo = read_photo(str(box))
        except RefusedError as refused:
            said = html.message(self._words.refusal(refused), "wrong")
            return ["", said, gr.update(visible=desk.photo is not None), desk.photo is not None]
        return ["", self._edges(desk.photo, low, high), gr.update(visible=True), True]

    def _remove(self, request: gr.Request) -> list[Any]:
        self._room.desks.of(_session(request)).photo = None
        return ["", gr.update(visible=False), False]

    def _preview(self, low: Any, high: Any, request: gr.Request) -> list[Any]:
        photo = self._room.desks.of(_session(request)).photo
        return [gr.skip() if photo is None else self._edges(photo, low, high)]

    def _edges(self, photo: Any, low: Any, high: Any) -> str:
        """A picture that was chosen, beside its edges as a picture of the model's size has them."""
        try:
            edges = edges_of(guide_from(photo, low, high, 1), self._studio.plain.height, self._studio.plain.width)
        except RefusedError as refused:
            return html.message(self._words.refusal(refused), "wrong")
        return html.guide(self._words, photo, edges)

    def _leave(self, request: gr.Request) -> None:
        self._room.desks.forget(_session(request))


class _View:
    """What changes on the page while a job is on its way; pictures are sent once."""

    def __init__(self, words: Words, studio: Studio, job: Job, line: Line) -> None:
        self._words, self._studio, self._job, self._line = words, studio, job, line
        self._seen: tuple[int, int] | None = None
        self._showing = (False, False)  # whether the unmerged picture is, and the merged one

    def changes(self) -> list[Any] | None:
        """Status, pictures, figures and map; None where nothing is new."""
        seen = self._job.version, self._line.before(self._job)
        if seen == self._seen:
            return None
        self._seen = seen
        return [self._status(seen[1]), *self._pictures()]

    def last(self) -> list[Any]:
        """The same when all is over."""
        job, words = self._job, self._words
        if job.failure is not None:
            status = html.message(words.refusal(job.failure), "wrong")
        else:
            status = html.message(words.done if job.finished else words.cancelled)
        pictures = self._pictures()
        if job.finished and job.order.with_map:
            pictures[-1] = html.map_of(words, job.map)
        return [status, *pictures]

    def _status(self, before: int) -> str:
        job, words = self._job, self._words
        if job.stage == WAITING:
            return html.progress(words, words.waiting.format(before=before), 0, 0)
        said = {
            WARMING_UP: words.warming_up, UNMERGED: words.drawing_unmerged, MERGED: words.drawing_merged,
            MAP: words.drawing_map,
        }  # fmt: skip
        return html.progress(words, said[job.stage], job.done, job.calls)

    def _pictures(self) -> list[Any]:
        """Pictures, figures and no map, as far as they are there; what the job before had stays until there are any."""
        job, words = self._job, self._words
        unmerged, merged = job.unmerged, job.merged
        # Of a remembered picture the page shows the pair it was in, until there is the new one.
        showing = unmerged is not None and not (job.remembered and merged is None), merged is not None
        if showing == self._showing or unmerged is None:
            return [gr.skip()] * 3
        self._showing = showing
        if merged is None:
            return [html.pair(words, unmerged.drawn, None), "", ""]
        odd = [
            str(getattr(words, f"odd_{what}")).format(detail=detail)
            for what, detail in self._studio.odd(job.order.wanted).items()
        ]
        memory = explain_peak()
        figures = html.figures(
            words, unmerged, merged, settings=job.order.tome.summary, memory=words.memories.get(memory, memory),
            remembered=job.remembered, odd=odd,
        )  # fmt: skip
        return [html.pair(words, unmerged.drawn, merged), figures, ""]


def _on(
    event: Any, do: Callable[..., Any], inputs: list[Any], outputs: list[Any], name: str | bool, *, queue: bool = True
) -> None:
    """Have something done on an event, which programs can ask for too, by its name."""
    event(do, inputs, outputs, api_name=name, show_progress="hidden", trigger_mode="multiple", queue=queue)


def _saying(text: str) -> Callable[[], str]:
    return lambda: text


def _session(request: gr.Request) -> str:
    return str(request.session_hash)
=======
        yield
    except RefusedError as refused:
        values = dict(refused.values)
        if "field" in values:
            values["field"] = translate(language, values["field"])
        text = escape(translate(language, refused.reason, **values))  # as Gradio shows HTML
        raise gr.Error(text, duration=None, print_exception=False) from None
>>>>>>> 94f17ba (The page, rewritten on Gradio's own state, files, progress and errors: one page in two languages, times estimated beforehand, paths of the machine are no uploads)

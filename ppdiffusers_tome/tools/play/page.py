"""The layout of the page, and what its buttons do."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from ppdiffusers_tome.errors import ToMeError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import presets
from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS
from ppdiffusers_tome.tools.generation.device import get_device_name
from ppdiffusers_tome.tools.generation.settings import SIZE_MULTIPLE
from ppdiffusers_tome.tools.measure.out_of_memory import is_out_of_memory
from ppdiffusers_tome.tools.play.html import render_comparison, render_photo, render_unmerged
from ppdiffusers_tome.tools.play.i18n import CHINESE, LANGUAGES, choose_language, translate
from ppdiffusers_tome.tools.play.requests import FORMATS, MAX_BYTES, MAX_CACHE, MIN_RATIO, OWN, RefusedError, read_photo
from ppdiffusers_tome.tools.play.studio import Comparison, Request, Studio

_HIDDEN: dict[str, Any] = {"show_progress": "hidden", "show_api": False}
_MAX_SESSIONS, _MAX_WAITING = 32, 16
_UPLOAD_SECONDS = 60  # until an uploaded file, which is read at once, is deleted
# In the browser, as Gradio may lose a click that comes while it waits for the answer to a changed field.
_SHOW_OWN = f"name => ({{visible: name === '{OWN}', __type__: 'update'}})"


class Page:
    """The page of a studio, whose attribute ``blocks`` Gradio serves to all users.

    Args:
        studio: generates the images.
        examples: prompts to try.
        language: of ``LANGUAGES``; None for the browser's.
    """

    def __init__(self, studio: Studio, examples: Sequence[str], language: str | None) -> None:
        self._studio, self._language = studio, language
        self._words: dict[Any, dict[str, str]] = {}  # keys of ``WORDS`` by component and attribute
        self._form: dict[str, Any] = {}
        theme = gr.themes.Default(
            primary_hue="blue", neutral_hue="slate",
            font=[gr.themes.Font("system-ui"), gr.themes.Font("sans-serif")],  # others come from the network
            font_mono=[gr.themes.Font("ui-monospace"), gr.themes.Font("monospace")],
        )  # fmt: skip
        self.blocks = gr.Blocks(
            theme=theme, css_paths=Path(__file__).with_name("style.css"), title="Token merging",
            analytics_enabled=False, delete_cache=(_UPLOAD_SECONDS, _UPLOAD_SECONDS),
        )  # fmt: skip
        self.blocks.has_launched = True  # or Gradio accepts any path of this machine as an upload
        self.blocks.state_session_capacity = _MAX_SESSIONS
        self.blocks.queue(default_concurrency_limit=None, max_size=_MAX_WAITING, api_open=False)
        with self.blocks:
            header = gr.Markdown(elem_id="tome-header")
            with gr.Row(elem_id="tome-columns"):
                with gr.Column(scale=2, min_width=300):
                    self._lay_out_form(examples)
                    file, preview = self._lay_out_guide()
                    with gr.Row():
                        generate = self._add(gr.Button(variant="primary", elem_id="tome-generate"), value="generate")
                        cancel = self._add(gr.Button(interactive=False, elem_id="tome-cancel"), value="cancel")
                with gr.Column(scale=3, min_width=300):
                    result = gr.HTML(elem_id="tome-result", padding=False)
            self._connect(header, file, preview, generate, cancel, result)

    def _add(self, component: Any, field: str | None = None, **words: str) -> Any:
        """Translate attributes of a component, and make it a form field."""
        self._words[component] = words
        if field is not None:
            self._form[field] = component
        return component

    def _lay_out_form(self, examples: Sequence[str]) -> None:
        loaded, usual = self._studio.plain, ToMeConfig()
        if loaded.labels is None:
            prompt = self._add(gr.Textbox(self._studio.prompt, lines=2, max_lines=6), "prompt", label="prompt")
            if examples:
                self._add(gr.Examples([[example] for example in examples], prompt).dataset, label="examples")
        else:
            names = loaded.labels.list_names()
            self._add(gr.Dropdown(names, value=self._studio.prompt, allow_custom_value=True), "prompt", label="class")
        names = sorted(presets(), key=lambda name: ToMeConfig.named(name).highest_ratio(1))
        preset = self._add(gr.Radio([*names, OWN], value="balanced", elem_id="tome-preset"), "preset", label="merging")
        with gr.Column(visible=False, elem_id="tome-own") as own:  # a group would cut off the list of methods
            self._add(gr.Dropdown([*METHODS], value=usual.method), "method", label="method")
            self._add(gr.Slider(MIN_RATIO, 0.75, usual.ratio, step=0.05), "ratio", label="ratio", info="ratio_info")
        self._add(gr.Slider(0, MAX_CACHE, 0, step=0.1), "cache", label="cache", info="cache_info")
        self._add(gr.Slider(0.1, 1, 1, step=0.1), "end", label="end", info="end_info")
        preset.change(None, preset, own, js=_SHOW_OWN)
        with self._add(gr.Accordion(open=False), label="options"):
            with gr.Row():
                self._add_number("seed", loaded.settings.seed, precision=0)
                self._add_number("steps", loaded.settings.steps, precision=0)
                self._add_number("guidance", loaded.guidance_scale, step=0.5)
            with gr.Row(visible=loaded.labels is None):
                for field, pixels in zip(("height", "width"), loaded.size, strict=True):
                    self._add_number(field, pixels, step=SIZE_MULTIPLE)
            negative_prompt = gr.Textbox(loaded.settings.negative_prompt, visible=loaded.labels is None)
            self._add(negative_prompt, "negative_prompt", label="negative_prompt")

    def _lay_out_guide(self) -> tuple[Any, Any]:
        accordion = gr.Accordion(open=False, visible=self._studio.guided is not None, elem_id="tome-guide")
        with self._add(accordion, label="guide"):
            file = self._add(gr.File(type="binary", file_types=["image"], height=140), label="photo")
            preview = gr.HTML(padding=False)
            has_photo = self._add(gr.Checkbox(False, visible=False), "has_photo")
            # In the browser, which still has the file where this program has lost it.
            file.change(None, file, has_photo, js="file => Boolean(file)")
            with gr.Row():
                self._add_number("low", 100, step=10)
                self._add_number("high", 200, step=10)
                self._add_number("strength", 1, step=0.1)
        return file, preview

    def _add_number(self, field: str, value: float, **options: Any) -> None:
        self._add(gr.Number(value, min_width=110, **options), field, label=field)

    def _connect(self, header: Any, file: Any, preview: Any, generate: Any, cancel: Any, result: Any) -> None:
        language, photo, request, comparison = gr.State("en"), gr.State(), gr.State(), gr.State()
        form, buttons = [*self._form.values()], [generate, cancel]
        self.blocks.load(self._translate, None, [language, header, result, *self._words], **_HIDDEN)
        shown = {"inputs": [language, photo, *form], "outputs": preview, **_HIDDEN}
        # One at a time, as decoding the most pixels takes a GiB.
        file.upload(self._read_photo, [language, file], photo, concurrency_limit=1, **_HIDDEN).success(
            self._preview, **shown
        )
        file.clear(lambda: (None, ""), None, [photo, preview], **_HIDDEN)
        for field in ("low", "high"):
            self._form[field].change(self._preview, **shown)
        running = generate.click(self._prepare, [language, photo, *form], [request, *buttons], **_HIDDEN).success(
            self._generate, [language, request, comparison], [result, comparison], show_api=False, concurrency_limit=1
        )
        running.then(lambda: [gr.update(interactive=True), gr.update(interactive=False)], None, buttons, **_HIDDEN)
        cancel.click(_cancel, request, None, **_HIDDEN)
        self.blocks.unload(self._forget)

    def _translate(self, request: gr.Request) -> list[Any]:
        """Return the language, the header, the first result and the words of all components."""
        language = request.query_params.get("language")
        if language not in LANGUAGES:
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
        header = words("header", model=settings.model.label, device=get_device_name(), dtype=settings.dtype)
        first = f"<p>{words('first')}</p>"
        if self._studio.plain.settings.model.bundled and self._studio.plain.labels is None:
            first += f"<p>{words('known', subjects=', '.join(subject.words for subject in SUBJECTS))}</p>"
        return [language, header, first, *(gr.update(**update) for update in updates.values())]

    def _read_photo(self, language: str, content: bytes) -> Any:
        with _errors_in_words(language):
            return read_photo(content)

    def _preview(self, language: str, photo: Any, *values: Any) -> str:
        if photo is None:
            return ""
        with _errors_in_words(language):
            edges = self._studio.find_edges(photo, dict(zip(self._form, values, strict=True)))
            return render_photo(partial(translate, language), photo, edges)

    def _prepare(self, language: str, photo: Any, *values: Any) -> list[Any]:
        with _errors_in_words(language):
            request = self._studio.prepare(dict(zip(self._form, values, strict=True)), photo)
        return [request, gr.update(interactive=False), gr.update(interactive=True)]

    def _generate(
        self, language: str, request: Request, previous: Comparison | None,
        progress: gr.Progress = gr.Progress(),  # noqa: B008  how Gradio finds it
    ) -> Iterator[list[Any]]:  # fmt: skip
        words = partial(translate, language)

        def report(stage: str, done: int, calls: int) -> None:
            progress((done, calls) if calls else 0, desc=words(stage, done=done), unit=words("calls"))

        with _errors_in_words(language):
            try:
                unmerged, is_reused = self._studio.generate_unmerged(request, previous, report)
                yield [render_unmerged(words, unmerged.image), gr.skip()]
                comparison = self._studio.compare(request, unmerged, is_reused, report)
            except CancelledError:
                gr.Info(words("cancelled"))
                yield [gr.skip(), gr.skip()]
                return
        yield [render_comparison(words, comparison), comparison]

    def _forget(self, user: gr.Request) -> None:
        """Cancel and drop what a closed page asked for; Gradio would keep it."""
        session = self.blocks.state_holder.session_data.pop(user.session_hash, None)
        for value in session.state_data.values() if session is not None else ():
            if isinstance(value, Request):
                _cancel(value)


def _cancel(request: Request | None) -> None:
    if request is not None:
        request.cancelled.set()


@contextmanager
def _errors_in_words(language: str) -> Iterator[None]:
    """Show errors in the user's language, and unforeseen ones on the terminal."""
    try:
        yield
    except Exception as error:
        reason, values = "broken", {}
        if isinstance(error, RefusedError):
            reason, values = error.reason, dict(error.values)
        elif isinstance(error, ToMeError):
            reason, values = "failed", {"detail": error}
        elif is_out_of_memory(error):
            reason = "out_of_memory"
        else:
            traceback.print_exc()
        if "field" in values:
            values["field"] = translate(language, values["field"])
        text = escape(translate(language, reason, **values))  # as Gradio shows HTML
        raise gr.Error(text, title=translate(language, "error"), duration=None, print_exception=False) from None

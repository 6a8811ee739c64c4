"""The layout of the page in one language, and what its buttons do."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
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
from ppdiffusers_tome.tools.generation.settings import SIZE_MULTIPLE
from ppdiffusers_tome.tools.measure.memory import is_out_of_memory
from ppdiffusers_tome.tools.measure.system import get_device_name
from ppdiffusers_tome.tools.play.html import render_comparison, render_photo, render_unmerged
from ppdiffusers_tome.tools.play.i18n import CHINESE, translate
from ppdiffusers_tome.tools.play.studio import (
    FORMATS,
    MAX_BYTES,
    MAX_SEED,
    MAX_STEPS,
    NONE,
    OWN,
    Comparison,
    RefusedError,
    Request,
    Studio,
    read_photo,
)

_HIDDEN: dict[str, Any] = {"show_progress": "hidden", "show_api": False}
_MAX_SESSIONS, _MAX_WAITING = 32, 16
_UPLOAD_SECONDS = 60  # until an uploaded file, which is read at once, is deleted
# In the browser, as Gradio may lose a click that comes while it waits for the answer to a changed field.
_SHOW_OWN = f"name => ({{visible: name === '{OWN}', __type__: 'update'}})"


def make_pages(studio: Studio, language: str | None = None) -> dict[str, gr.Blocks]:
    """Return the pages of a studio by their languages, or that of one language."""
    links = {"en": "· [中文](../zh/)", "zh": "· [English](../en/)"}
    if language is not None:
        links = {language: ""}
    return {name: Page(studio, name, link).blocks for name, link in links.items()}


class Page:
    """The page of a studio, whose attribute ``blocks`` Gradio serves to all users.

    Args:
        studio: generates the images.
        language: of ``i18n.LANGUAGES``.
        link: Markdown that leads to the other language, or "".
    """

    def __init__(self, studio: Studio, language: str, link: str = "") -> None:
        self._studio, self._words = studio, partial(translate, language)
        self._form: dict[str, Any] = {}
        self._running: dict[str, Request] = {}  # by session
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
        settings, words, examples = studio.plain.settings, self._words, []
        first = f"<p>{words('first')}</p>"
        if studio.plain.labels is None and (settings.model.bundled or settings.model.is_emoji):
            examples = [[prompt] for prompt in settings.model.prompts]
        if examples and settings.model.bundled:
            first += f"<p>{words('known', subjects=', '.join(subject.words for subject in SUBJECTS))}</p>"
        with self.blocks:
            header = words("header", model=settings.model.label, device=get_device_name(), dtype=settings.dtype)
            gr.Markdown(f"{header} {link}", elem_id="tome-header")
            with gr.Row(elem_id="tome-columns"):
                with gr.Column(scale=2, min_width=300):
                    self._lay_out_form(examples, CHINESE if language == "zh" else {})
                    file, preview = self._lay_out_guide()
                    with gr.Row():
                        generate = gr.Button(words("generate"), variant="primary", elem_id="tome-generate")
                        cancel = gr.Button(words("cancel"), elem_id="tome-cancel")
                with gr.Column(scale=3, min_width=300):
                    result = gr.HTML(first, elem_id="tome-result", padding=False)
            self._connect(file, preview, generate, cancel, result)

    def _lay_out_form(self, examples: list[list[str]], about: dict[str, str]) -> None:
        loaded, usual, words, form = self._studio.plain, ToMeConfig(), self._words, self._form
        if loaded.labels is None:
            form["prompt"] = gr.Textbox(self._studio.prompt, label=words("prompt"), lines=2, max_lines=6)
            if examples:
                gr.Examples(examples, form["prompt"], label=words("examples"))
        else:
            form["prompt"] = gr.Dropdown(
                loaded.labels.list_names(), value=self._studio.prompt, allow_custom_value=True, label=words("class")
            )
        names = sorted(presets(), key=lambda name: ToMeConfig.named(name).highest_ratio(1))
        choices = [(words("none"), NONE), *((name, name) for name in names), (words("own"), OWN)]
        form["preset"] = gr.Radio(choices, value="balanced", elem_id="tome-preset", label=words("merging"))
        with gr.Column(visible=False, elem_id="tome-own") as own:  # a group would cut off the list of methods
            choices = [(about.get(name, f"{name}: {method.about}"), name) for name, method in METHODS.items()]
            form["method"] = gr.Dropdown(choices, value=usual.method, label=words("method"))
            self._add_slider("ratio", 0.05, 0.75, usual.highest_ratio(1), step=0.05)
        self._add_slider("cache", 0, 0.7, 0)
        self._add_slider("end", 0.1, 1, 1)
        form["preset"].change(None, form["preset"], own, js=_SHOW_OWN)
        with gr.Accordion(words("options"), open=False):
            with gr.Row():
                self._add_number("seed", loaded.settings.seed, 0, MAX_SEED, precision=0)
                self._add_number("steps", loaded.settings.steps, 1, MAX_STEPS, precision=0)
                self._add_number("guidance", loaded.guidance_scale, 0, 100, step=0.5)
            with gr.Row(visible=loaded.labels is None):
                for field, pixels in zip(("height", "width"), loaded.size, strict=True):
                    self._add_number(field, pixels, SIZE_MULTIPLE, 2**16, step=SIZE_MULTIPLE, precision=0)
            form["negative_prompt"] = gr.Textbox(
                loaded.settings.negative_prompt, label=words("negative_prompt"), visible=loaded.labels is None
            )

    def _lay_out_guide(self) -> tuple[Any, Any]:
        words = self._words
        with gr.Accordion(words("guide"), open=False, visible=self._studio.guided is not None, elem_id="tome-guide"):
            label = words("photo", formats=", ".join(FORMATS), mebibytes=MAX_BYTES // 2**20)
            file = gr.File(type="binary", file_types=["image"], height=140, label=label)
            preview = gr.HTML(padding=False)
            self._form["has_photo"] = gr.Checkbox(False, visible=False)
            # In the browser, which still has the file where this program has lost it.
            file.change(None, file, self._form["has_photo"], js="file => Boolean(file)")
            with gr.Row():
                self._add_number("low", 100, 0, 1000, step=10)
                self._add_number("high", 200, 0, 1000, step=10)
                self._add_number("strength", 1, 0, 10, step=0.1)
        return file, preview

    def _add_number(self, field: str, value: float, least: float, most: float, **options: Any) -> None:
        self._form[field] = gr.Number(
            value, minimum=least, maximum=most, label=self._words(field), min_width=110, **options
        )

    def _add_slider(self, field: str, least: float, most: float, value: float, *, step: float = 0.1) -> None:
        words = self._words
        self._form[field] = gr.Slider(least, most, value, step=step, label=words(field), info=words(f"{field}_info"))

    def _connect(self, file: Any, preview: Any, generate: Any, cancel: Any, result: Any) -> None:
        photo, comparison, form = gr.State(), gr.State(), [*self._form.values()]
        shown = {"inputs": [photo, *form], "outputs": preview, **_HIDDEN}
        # One at a time, as decoding the most pixels takes a GiB.
        file.upload(self._read_photo, file, photo, concurrency_limit=1, **_HIDDEN).success(self._preview, **shown)
        file.clear(lambda: (None, ""), None, [photo, preview], **_HIDDEN)
        for field in ("low", "high"):
            self._form[field].change(self._preview, **shown)
        running = generate.click(
            self._generate, [comparison, photo, *form], [result, comparison], show_api=False, concurrency_limit=1
        )
        cancel.click(self._cancel, None, None, cancels=running, **_HIDDEN)
        self.blocks.unload(self._forget)

    def _read_photo(self, content: bytes) -> Any:
        with self._errors_in_words():
            return read_photo(content)

    def _preview(self, photo: Any, *values: Any) -> str:
        if photo is None:
            return ""
        with self._errors_in_words():
            edges = self._studio.find_edges(photo, dict(zip(self._form, values, strict=True)))
            return render_photo(self._words, photo, edges)

    def _generate(
        self, user: gr.Request, previous: Comparison | None, photo: Any,
        progress: gr.Progress = gr.Progress(),  # noqa: B008  how Gradio finds it
        *values: Any,
    ) -> Iterator[list[Any]]:  # fmt: skip
        words, session = self._words, str(user.session_hash)

        def report(stage: str, done: int, calls: int) -> None:
            progress((done, calls) if calls else 0, desc=words(stage, done=done), unit=words("calls"))

        with self._errors_in_words():
            try:
                request = self._studio.prepare(dict(zip(self._form, values, strict=True)), photo)
                self._running[session] = request
                for found in self._studio.compare(request, previous, report):
                    if isinstance(found, Comparison):
                        yield [render_comparison(words, found), found]
                    else:
                        yield [render_unmerged(words, found.image), gr.skip()]
            except CancelledError:
                yield [gr.skip(), gr.skip()]
            finally:
                self._running.pop(session, None)

    def _cancel(self, user: gr.Request) -> None:
        if (request := self._running.get(str(user.session_hash))) is not None:
            request.cancelled.set()

    def _forget(self, user: gr.Request) -> None:
        """Cancel and drop what a closed page asked for; Gradio would keep it."""
        self._cancel(user)
        self.blocks.state_holder.session_data.pop(user.session_hash, None)

    @contextmanager
    def _errors_in_words(self) -> Iterator[None]:
        """Show errors in the user's language, and unforeseen ones on the terminal."""
        try:
            yield
        except Exception as error:
            reason, values = "broken", {}
            if isinstance(error, RefusedError):
                reason, values = error.reason, error.values
            elif isinstance(error, ToMeError):
                reason, values = "failed", {"detail": error}
            elif is_out_of_memory(error):
                reason = "out_of_memory"
            else:
                traceback.print_exc()
            text = escape(self._words(reason, **values))  # as Gradio shows HTML
            raise gr.Error(text, title=self._words("error"), duration=None, print_exception=False) from None

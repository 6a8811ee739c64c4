"""The layout of the page in one language, and what its buttons do."""

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
from ppdiffusers_tome.settings.presets import PRESETS
from ppdiffusers_tome.tools.generation.image_settings import SIZE_MULTIPLE
from ppdiffusers_tome.tools.generation.tome_arguments import DEFAULT_PRESET
from ppdiffusers_tome.tools.measure.memory import explain_shortage
from ppdiffusers_tome.tools.measure.system import get_device_name
from results import render_comparison, render_unmerged
from words import translate
from studio import (
    GIVEN,
    MAX_BYTES,
    MAX_SEED,
    MAX_STEPS,
    NONE,
    OWN,
    ImagePair,
    ImageRequest,
    RefusedError,
    Studio,
    read_photo,
)

_HIDDEN: dict[str, Any] = {"show_progress": "hidden", "show_api": False}
_MAX_SESSIONS, _MAX_WAITING = 32, 16
_UPLOAD_SECONDS = 60  # until an uploaded file, which is read at once, is deleted
_RATIO, _CACHE = 0.5, 0.2  # where "by ratio" begins; where nothing merges, the cache is on


class StudioPage:
    """The page of a studio in one language; Gradio serves its ``blocks``."""

    def __init__(self, studio: Studio, language: str) -> None:
        self._studio, self._words, self._form = studio, partial(translate, language), dict[str, Any]()
        self._running: dict[str, ImageRequest] = {}  # by session
        self.blocks = gr.Blocks(
            theme=gr.themes.Default(primary_hue="blue", font=["system-ui", "sans-serif"]),  # no other: a download
            css_paths=Path(__file__).with_name("style.css"), title="ppdiffusers_tome",
            analytics_enabled=False, delete_cache=(_UPLOAD_SECONDS, _UPLOAD_SECONDS),
        )  # fmt: skip
        self.blocks.has_launched = True  # or Gradio accepts any path of this machine as an upload
        self.blocks.state_session_capacity = _MAX_SESSIONS
        self.blocks.queue(default_concurrency_limit=None, max_size=_MAX_WAITING, api_open=False)
        with self.blocks:
            self._lay_out()

    def _lay_out(self) -> None:
        """Lay out all columns, and what their buttons do."""
        words, settings, form = self._words, self._studio.plain.settings, self._form
        ways = {
            words("compiled", precision=settings.compile): settings.compile, words("cpu_kernels"): settings.cpu_kernels,
            "xformers": settings.xformers,
        }  # fmt: skip
        used = [way for way, is_used in ways.items() if is_used]
        facts = [settings.model.label, get_device_name(), settings.dtype, *used]
        gr.Markdown(f"{words('header')} {' · '.join(facts)}")
        with gr.Row(elem_id="tome-columns"):
            with gr.Column(elem_id="tome-prompt"):
                known = self._lay_out_prompt()
                with gr.Row():
                    generate = gr.Button(words("generate"), variant="primary", elem_id="tome-generate")
                    cancel = gr.Button(words("cancel"), elem_id="tome-cancel")
                progress = gr.HTML(elem_id="tome-progress", padding=False)
            with gr.Column(elem_id="tome-images"):
                result = gr.HTML(f"<p>{words('first')}</p>{known}", elem_id="tome-result", padding=False)
            with gr.Column(elem_id="tome-settings"):
                self._lay_out_settings()
                self._lay_out_options()
                file = self._lay_out_guide()
        photo, comparison = gr.State(), gr.State()
        # One at a time, as decoding the most pixels takes a GiB.
        file.upload(self._read_photo, file, photo, concurrency_limit=1, **_HIDDEN)
        file.clear(lambda: None, None, photo, **_HIDDEN)
        running = generate.click(
            self._generate, [comparison, photo, *form.values()], [result, comparison, progress], show_api=False,
            concurrency_limit=1,
        )  # fmt: skip
        cancel.click(self._cancel, None, None, cancels=running, **_HIDDEN)
        self.blocks.unload(self._forget)

    def _lay_out_prompt(self) -> str:
        """Lay out the prompt; return what a small model knows, as HTML."""
        loaded, words, model = self._studio.plain, self._words, self._studio.plain.settings.model
        if loaded.labels is not None:
            self._form["prompt"] = gr.Dropdown(
                loaded.labels.list_names(), value=self._studio.prompt, allow_custom_value=True, label=words("class")
            )
            return ""
        self._form["prompt"] = gr.Textbox(self._studio.prompt, label=words("prompt"), lines=2, max_lines=6)
        if not model.prompts:
            return ""
        gr.Examples([[prompt] for prompt in model.default_prompts], self._form["prompt"], label=words("examples"))
        return f"<p>{escape(words('known', subjects=', '.join(model.subjects)))}</p>"

    def _lay_out_settings(self) -> None:
        """Lay out the settings of token merging; a choice shows its own."""
        words, form, is_given = self._words, self._form, not self._studio.plain.settings.tome.changes_nothing
        choices = [(words(GIVEN), GIVEN)] if is_given else []
        choices += [*((name, name) for name in PRESETS), (words(OWN), OWN)]
        begin = GIVEN if is_given else DEFAULT_PRESET
        takes_cache = self._studio.plain.settings.compile is None
        if takes_cache:
            choices.append((words(NONE), NONE))
            if begin == DEFAULT_PRESET and self._studio.plain.labels is not None:
                begin = NONE  # on a transformer of classes the cache keeps more than merging
        form["preset"] = gr.Radio(
            choices, value=begin, label=words("merging"), elem_id="tome-preset",
            info=words("merging_info" if takes_cache else "merging_compiled"),
        )  # fmt: skip
        with gr.Column(visible=False, elem_id="tome-own") as own:
            form["method"] = gr.Radio([*METHODS], value="tome", label=words("method"), info=words("method_info"))
            self._add_slider("ratio", 0.05, 0.7, _RATIO, step=0.05)
        self._add_slider("cache", 0, 0.7, _CACHE if begin == NONE else 0, visible=takes_cache and not is_given)
        # In the browser, as Gradio may lose a click that comes while it waits for an answer.
        has_cache, of_cache = f"{str(takes_cache).lower()} && name !== '{GIVEN}'", f"name === '{NONE}' ? {_CACHE} : 0"
        form["preset"].change(None, form["preset"], [own, form["cache"]], js=f"""name => [
            {{visible: name === '{OWN}', __type__: 'update'}},
            {{visible: {has_cache}, value: {of_cache}, __type__: 'update'}}
        ]""")  # fmt: skip

    def _lay_out_options(self) -> None:
        """Lay out what an image depends on besides its prompt and merging."""
        loaded, takes_text = self._studio.plain, self._studio.plain.labels is None
        with gr.Accordion(self._words("options"), open=False):
            with gr.Row():
                self._add_number("seed", loaded.settings.seed, 0, MAX_SEED, precision=0)
                self._add_number("steps", loaded.settings.steps, 1, MAX_STEPS, precision=0)
                self._add_number("guidance", loaded.guidance_scale, 0, 100, step=0.5)
            with gr.Row(visible=takes_text):
                for field, pixels in zip(("height", "width"), loaded.size, strict=True):
                    self._add_number(field, pixels, SIZE_MULTIPLE, 2**16, step=SIZE_MULTIPLE, precision=0)
            self._form["negative_prompt"] = gr.Textbox(
                loaded.settings.negative_prompt or "", label=self._words("negative_prompt"), visible=takes_text
            )

    def _lay_out_guide(self) -> gr.File:
        """Lay out the photo whose edges guide; return its field."""
        label = self._words("photo", mebibytes=MAX_BYTES // 2**20)
        with gr.Accordion(self._words("guide"), open=False, visible=bool(self._studio.guided), elem_id="tome-guide"):
            file = gr.File(type="binary", file_types=["image"], height=140, label=label)
            self._form["has_photo"] = gr.Checkbox(False, visible=False)
            # In the browser, which still has the file where this program has lost it.
            file.change(None, file, self._form["has_photo"], js="file => Boolean(file)")
            with gr.Row():
                self._add_number("low", 100, 0, 1000, step=10)
                self._add_number("high", 200, 0, 1000, step=10)
                self._add_number("strength", 1, 0, 10, step=0.1)
        return file

    def _add_number(self, field: str, value: float, least: float, most: float, **options: Any) -> None:
        options |= {"minimum": least, "maximum": most, "min_width": 110}
        self._form[field] = gr.Number(value, label=self._words(field), **options)

    def _add_slider(self, field: str, least: float, most: float, value: float, **options: Any) -> None:
        options = {"step": 0.1, "label": self._words(field), "info": self._words(f"{field}_info"), **options}
        self._form[field] = gr.Slider(least, most, value, **options)

    def _read_photo(self, content: bytes) -> Any:
        with self._errors_in_words():
            return read_photo(content)

    def _generate(
        self, user: gr.Request, previous: ImagePair | None, photo: Any,
        progress: gr.Progress = gr.Progress(),  # noqa: B008  how Gradio finds it
        *values: Any,
    ) -> Iterator[list[Any]]:  # fmt: skip
        """Yield the result, the comparison and the progress, twice: the unmerged image comes first."""
        words, session, request = self._words, str(user.session_hash), None

        def report(stage: str, done: int, calls: int) -> None:
            progress((done, calls), desc=words(stage), unit=words("calls"))

        with self._errors_in_words():
            try:
                request = self._studio.prepare(dict(zip(self._form, values, strict=True)), photo)
                self._running[session] = request
                for found in self._studio.compare(request, previous, report):
                    if isinstance(found, ImagePair):
                        yield [render_comparison(words, found), found, ""]
                    else:
                        yield [render_unmerged(words, found.image), gr.skip(), ""]
            except CancelledError:
                yield [gr.skip()] * 3
            finally:
                if request is not None and self._running.get(session) is request:  # else the next one runs
                    del self._running[session]

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
            elif explain_shortage(error) is not None:
                reason = "out_of_memory"
            else:
                traceback.print_exc()
            text = escape(self._words(reason, **values))  # as Gradio shows HTML
            raise gr.Error(text, title=self._words("error"), duration=None, print_exception=False) from None

"""Generation of what the page shows. Imports no Gradio."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from PIL import Image

from ppdiffusers_tome import applied_tome
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.generation import loaded_pipeline
from ppdiffusers_tome.tools.generation.edges import detect_edges, fit_image
from ppdiffusers_tome.tools.generation.model_loader import drop_controlnet
from ppdiffusers_tome.tools.generation.results import GeneratedImage
from ppdiffusers_tome.tools.generation.settings import SIZE_MULTIPLE, Settings, check_text, make_warm_up_config
from ppdiffusers_tome.tools.play import requests
from ppdiffusers_tome.tools.play.requests import RefusedError, check_number, check_tome

T = TypeVar("T")
Report = Callable[[str, int, int], None]  # the stage, and how many of how many calls of the denoiser are done


@dataclass(frozen=True)
class Request:
    """An image, and how its tokens merge; ``cancelled`` ends it."""

    loaded: loaded_pipeline.LoadedPipeline
    prompt: str
    edges: Image.Image | None
    tome: ToMeConfig
    cancelled: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Comparison:
    """Both images of a request.

    Attributes:
        merged: with its similarity to the unmerged image.
        is_reused: whether an earlier comparison generated it.
        oddities: details of what a user should know, by keys of ``i18n.WORDS``.
    """

    request: Request
    unmerged: GeneratedImage
    merged: GeneratedImage
    is_reused: bool
    oddities: dict[str, str]


class Studio:
    """A loaded pipeline that generates one comparison at a time.

    Args:
        settings: what to load; with a ControlNet, images are generated with edges and without.
        prompts: the one that the page begins with.
        default: whether the user did not choose it, see ``load_for_prompts``.

    Attributes:
        plain: the pipeline without a ControlNet.
        guided: the pipeline with the ControlNet; None where there is none.
        prompt: the one that the page begins with.

    Raises:
        UserError: the pipeline cannot be loaded, or this device cannot run it.
    """

    def __init__(self, settings: Settings, prompts: list[str], *, default: bool) -> None:
        loaded, (self.prompt,) = loaded_pipeline.load_for_prompts(settings, prompts, default=default)
        loaded.pipe.set_progress_bar_config(disable=True)
        self.plain, self.guided = loaded, None
        if settings.controlnet is not None:
            self.guided, pipe = loaded, drop_controlnet(loaded.pipe)
            pipe.set_progress_bar_config(disable=True)
            self.plain = replace(loaded, pipe=pipe, settings=replace(settings, controlnet=None))
        self._warm: set[Any] = set()
        self._is_closed = False
        # One thread for all images, as each thread that computes keeps memory of the mathematical libraries.
        self._worker = ThreadPoolExecutor(1)

    def close(self) -> None:
        """Drop all comparisons, the running one after its current step."""
        self._is_closed = True
        self._worker.shutdown(cancel_futures=True)

    def find_edges(self, photo: Image.Image, form: Mapping[str, Any]) -> Image.Image:
        """Find the edges of a photo, white on black, as a form says.

        Raises:
            RefusedError: a number is out of range.
        """
        low, high = (check_number(form, field, 0, 1000) for field in ("low", "high"))
        return detect_edges(fit_image(photo, *_check_size(form)), low, high)

    def prepare(self, form: Mapping[str, Any], photo: Image.Image | None) -> Request:
        """Turn a form into a request that fits into memory.

        Raises:
            RefusedError: a field cannot be used, or the photo of the form is gone.
            ToMeError: the settings of token merging or the class cannot be used, or the image is too large.
        """
        if form["has_photo"] and photo is None:  # Gradio drops the state of a page after an hour without a connection
            raise RefusedError("lost_photo")
        base = self.plain if photo is None or self.guided is None else self.guided
        height, width = _check_size(form)
        settings = replace(
            base.settings, seed=int(check_number(form, "seed", 0, requests.MAX_SEED, 1)),
            steps=int(check_number(form, "steps", 1, requests.MAX_STEPS, 1)), height=height, width=width,
            guidance_scale=check_number(form, "guidance", 0, 100),
            controlnet_scale=check_number(form, "strength", 0, 10),
            negative_prompt=str(form["negative_prompt"] or "").strip() or None,
        )  # fmt: skip
        loaded, prompt, tome = replace(base, settings=settings), str(form["prompt"] or "").strip(), check_tome(form)
        if not prompt:
            raise RefusedError("no_prompt")
        for text in (prompt, settings.negative_prompt or ""):
            check_text("prompt", text)
        loaded.check(prompt)
        replace(settings, tome=ToMeConfig(0.0)).check_memory()
        edges = self.find_edges(photo, form) if base is self.guided and photo is not None else None
        return Request(loaded, prompt, edges, tome)

    def generate_unmerged(
        self, request: Request, previous: Comparison | None, report: Report
    ) -> tuple[GeneratedImage, bool]:
        """Generate the unmerged image; return it, and whether it is that of ``previous``.

        Args:
            request: from ``prepare``.
            previous: the last comparison of the same user.
            report: called in each stage.

        Raises:
            CancelledError: the request was cancelled, or the studio closed; a running step ends before.
        """
        last = None if previous is None else previous.request
        if previous and last and (last.loaded, last.prompt, last.edges) == (
            request.loaded, request.prompt, request.edges
        ):  # fmt: skip
            return previous.unmerged, True
        return self._run(self._generate, request, None, self._stop_if_cancelled(request, report)), False

    def compare(self, request: Request, unmerged: GeneratedImage, is_reused: bool, report: Report) -> Comparison:
        """Generate the merged image beside the unmerged one; see ``generate_unmerged``."""
        report_or_cancel = self._stop_if_cancelled(request, report)
        return self._run(self._compare, request, unmerged, is_reused, report_or_cancel)

    def _stop_if_cancelled(self, request: Request, report: Report) -> Report:
        def report_or_cancel(stage: str, done: int, calls: int) -> None:
            if request.cancelled.is_set() or self._is_closed:
                raise CancelledError
            report(stage, done, calls)

        return report_or_cancel

    def _run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Work on the one thread, in the context where Gradio looks for the user of a progress bar."""
        return self._worker.submit(copy_context().run, work, *arguments).result()

    def _compare(self, request: Request, unmerged: GeneratedImage, is_reused: bool, report: Report) -> Comparison:
        merged = self._generate(request, request.tome, report).compare_with(unmerged.image)
        oddities = request.loaded.describe_oddities(request.prompt)
        if request.edges is not None and request.edges.getbbox() is None:
            oddities["no_edges"] = ""
        applied = applied_tome(request.loaded.pipe)
        if request.tome.cache and applied is not None and (calls := applied.entries[0].last_image) is not None:
            oddities["cache_steps"] = f"{calls.num_skipped} / {calls.num_skipped + calls.num_computed}"
        return Comparison(request, unmerged, merged, is_reused, oddities)

    def _generate(self, request: Request, tome: ToMeConfig | None, report: Report) -> GeneratedImage:
        """Generate and measure an image, after a warm-up for new settings."""
        loaded, edges = request.loaded, request.edges
        key = (edges is not None, loaded.size, loaded.guidance_scale > 1, tome)
        if key not in self._warm:
            loaded.apply(make_warm_up_config(tome))
            loaded.generate(request.prompt, 0, edges, steps=1, after_call=_count_calls(report, "warm_up", 1))
            self._warm.add(key)
        loaded.apply(tome)
        stage = "unmerged_image" if tome is None else "merged_image"
        return loaded.generate(request.prompt, 0, edges, after_call=_count_calls(report, stage, loaded.count_calls()))


def _check_size(form: Mapping[str, Any]) -> tuple[int, int]:
    height, width = (check_number(form, field, SIZE_MULTIPLE, 2**16, SIZE_MULTIPLE) for field in ("height", "width"))
    return int(height), int(width)


def _count_calls(report: Report, stage: str, calls: int) -> Callable[[], None]:
    """Report that a stage begins; the result reports its calls."""
    numbers = iter(range(1, calls + 1))
    report(stage, 0, calls)
    return lambda: report(stage, next(numbers, calls), calls)

"""Generation of what the page shows. Imports no Gradio."""

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Any

from PIL import Image

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.step_schedule import MIN_STEPS, choose_computed_steps
from ppdiffusers_tome.tools.generation import checks, image_settings, loading, prompts
from ppdiffusers_tome.tools.generation.edges import detect_edges, fit_image
from ppdiffusers_tome.tools.generation.image_settings import ImageSettings
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from ppdiffusers_tome.tools.generation.pipeline_files import drop_controlnet
from ppdiffusers_tome.tools.generation.results import GeneratedImage
from ppdiffusers_tome.tools.images import read_image
from ppdiffusers_tome.tools.measure.similarity import Similarity, compare_images

NONE = "none"  # nothing merges; the cache over steps alone
OWN = "own"  # a method and a ratio from the form
GIVEN = "given"  # the settings that the command was given
# Browsers represent whole numbers exactly up to this one; a rounded seed would generate another image.
MAX_SEED = min(image_settings.MAX_SEED, 2**53 - 1)
MAX_STEPS = 200  # or one user could keep all others waiting for hours
MAX_BYTES = 20 * 2**20
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # some others that Pillow reads run programs
_MAX_SIDE = 2048  # of a photo
Notes = list[tuple[str, dict[str, Any]]]
ReportStage = Callable[[str, int, int], None]  # the stage, and how many of how many calls of the denoiser are done


class RefusedError(Exception):
    """A refusal: a key of ``words.WORDS`` and its values."""

    def __init__(self, reason: str, **values: Any) -> None:
        super().__init__(reason, values)
        self.reason, self.values = reason, values


@dataclass(frozen=True)
class ImageRequest:
    """A request for images; two are equal if their unmerged image is."""

    loaded: LoadedPipeline
    prompt: str
    edges: Image.Image | None
    tome: ToMeConfig = field(compare=False)
    cancelled: threading.Event = field(default_factory=threading.Event, compare=False)  # set, it ends the request


@dataclass(frozen=True)
class ImagePair:
    """Both images of a request, with notes: keys of ``words.WORDS`` and their values."""

    request: ImageRequest
    unmerged: GeneratedImage
    merged: GeneratedImage
    similarity: Similarity
    notes: Notes


def read_photo(content: bytes) -> Image.Image:
    """Decode an image file in RGB, at most 2048 pixels a side.

    Raises:
        RefusedError: it is no image of ``FORMATS``, or it has so many pixels that Pillow warns.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            photo = read_image(content, formats=FORMATS)
    except Exception as error:  # decoders of broken files raise anything
        most = (Image.MAX_IMAGE_PIXELS or 0) // 1_000_000
        raise RefusedError("no_image", formats=", ".join(FORMATS), most=most) from error
    photo.thumbnail((_MAX_SIDE, _MAX_SIDE))
    return photo


class Studio:
    """A loaded pipeline that generates one image at a time.

    Args:
        settings: what to load; with a ControlNet, images are generated with edges (``guided``) and without (``plain``).
        prompts: the one that the page begins with.
        are_default_prompts: as for ``load_for_prompts``.

    Raises:
        UserError: the pipeline cannot be loaded, or this device cannot run it.
    """

    def __init__(self, settings: ImageSettings, prompts: list[str], *, are_default_prompts: bool) -> None:
        self.plain, (self.prompt,) = loading.load_for_prompts(
            settings, prompts, are_default_prompts=are_default_prompts
        )
        self.guided = None
        if settings.controlnet is not None:
            self.guided, pipe = self.plain, drop_controlnet(self.plain.pipe)
            self.guided.pipe.set_progress_bar_config(disable=True)
            self.plain = replace(self.plain, pipe=pipe, settings=replace(settings, controlnet=None))
        self.plain.pipe.set_progress_bar_config(disable=True)
        self._warm: set[Any] = set()
        self._is_closed = False
        # One thread for all images, as each thread that computes keeps memory of the mathematical libraries.
        self._worker = ThreadPoolExecutor(1)

    def close(self) -> None:
        """Drop all comparisons, the running one after its current step."""
        self._is_closed = True
        self._worker.shutdown(cancel_futures=True)

    def prepare(self, form: Mapping[str, Any], photo: Image.Image | None) -> ImageRequest:
        """Turn a form into a request.

        Raises:
            RefusedError: a field cannot be used, the settings change nothing, or the photo of the form is gone.
            ToMeError: the pipeline does not take it.
        """
        if form["has_photo"] and photo is None:  # Gradio drops the state of a page after an hour without a connection
            raise RefusedError("lost_photo")
        prompt, negative_prompt = (str(form[name] or "").strip() for name in ("prompt", "negative_prompt"))
        if not prompt or None in form.values():
            raise RefusedError("empty")
        prompts.check_text("prompt", prompt + negative_prompt)
        multiple = image_settings.SIZE_MULTIPLE
        if any(form[name] <= 0 or form[name] % multiple for name in ("height", "width")):
            raise RefusedError("bad_size", multiple=multiple)
        if form["low"] > form["high"]:
            raise RefusedError("bad_thresholds")
        if negative_prompt and form["guidance"] <= 1:
            raise RefusedError("bad_negative")
        tome, base, edges = self._read_settings(form), self.plain, None
        if photo is not None and self.guided is not None:
            fitted = fit_image(photo, form["height"], form["width"])
            base, edges = self.guided, detect_edges(fitted, form["low"], form["high"])
        own = replace(
            base.settings, **{name: form[name] for name in ("seed", "steps", "height", "width")},
            guidance_scale=form["guidance"], controlnet_scale=form["strength"], negative_prompt=negative_prompt or None,
            tome=ToMeConfig(0.0),
        )  # fmt: skip
        loaded = replace(base, settings=own)
        calls = loaded.count_calls()  # of some schedulers not one a step
        if tome.ratio == 0 and len(choose_computed_steps(calls, tome.cache)) == calls:
            raise RefusedError("no_change", steps=form["steps"], least=MIN_STEPS)
        if loaded.labels is not None:
            try:
                loaded.labels.find_class(prompt)
            except UserError:
                raise RefusedError("unknown_class", last=loaded.labels.num_classes - 1) from None
        checks.check_settings(loaded)
        return ImageRequest(loaded, prompt, edges, tome)

    def _read_settings(self, form: Mapping[str, Any]) -> ToMeConfig:
        if form["preset"] == GIVEN:
            return self.plain.settings.tome
        if form["preset"] == NONE:
            return ToMeConfig(0.0, cache=form["cache"])
        if form["preset"] == OWN:
            return ToMeConfig(form["ratio"], method=form["method"], cache=form["cache"])
        return replace(ToMeConfig.preset(form["preset"]), cache=form["cache"])  # no file is read

    def compare(
        self, request: ImageRequest, previous: ImagePair | None, report: ReportStage
    ) -> Iterator[GeneratedImage | ImagePair]:
        """Yield the unmerged image, which may be that of ``previous``, then the comparison.

        Raises:
            CancelledError: the request was cancelled, or the studio closed; a running step ends before.
        """

        def report_or_cancel(stage: str, done: int, calls: int) -> None:
            if request.cancelled.is_set() or self._is_closed:
                raise CancelledError
            report(stage, done, calls)

        if previous is not None and previous.request == request:
            unmerged, is_reused = previous.unmerged, True
        else:
            unmerged, is_reused = self._run(self._generate, request, None, report_or_cancel), False
        yield unmerged
        yield self._run(self._compare, request, unmerged, is_reused, report_or_cancel)

    def _run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Work on the one thread, in the context of Gradio's progress bar."""
        return self._worker.submit(copy_context().run, work, *arguments).result()

    def _compare(
        self, request: ImageRequest, unmerged: GeneratedImage, is_reused: bool, report: ReportStage
    ) -> ImagePair:
        merged = self._generate(request, request.tome, report)
        similarity = compare_images(unmerged.image, merged.image)
        keys = ["measured_note", *(["reused_note"] if is_reused else [])]
        if request.edges is not None and request.edges.getbbox() is None:
            keys.append("no_edges")
        keys += checks.describe_oddities(request.loaded, request.prompt)
        notes = _describe_merging(request) + [(key, {}) for key in keys]
        return ImagePair(request, unmerged, merged, similarity, notes)

    def _generate(self, request: ImageRequest, tome: ToMeConfig | None, report: ReportStage) -> GeneratedImage:
        """Generate and measure an image after a warm-up for new settings."""
        loaded, edges, stage = request.loaded, request.edges, "unmerged_image" if tome is None else "merged_image"
        key = (edges is not None, loaded.size, loaded.guidance_scale > 1, tome)
        # Of programs only some are kept in memory, so that of other settings may be gone.
        if key not in self._warm or loaded.settings.compile is not None:
            loaded.warm_up(tome, request.prompt, 0, edges, after_step=_count_calls(report, "warm_up", 1))
            self._warm.add(key)
        loaded.apply(tome)
        return loaded.generate(request.prompt, 0, edges, after_step=_count_calls(report, stage, loaded.count_calls()))


def _describe_merging(request: ImageRequest) -> Notes:
    """Say what merges, and what the last image skipped."""
    from ppdiffusers_tome.api import get_tome

    applied = get_tome(request.loaded.pipe)
    entries = () if applied is None else applied.entries
    notes: Notes = [
        ("applied_note", {"denoiser": each.denoiser, "settings": each.config.summary, "blocks": len(each.paths)})
        for each in entries
    ]
    skipped = request.loaded.count_skipped_calls().items()
    return notes + [
        ("skipped_note", {"denoiser": name, "skipped": count, "calls": calls}) for name, (count, calls) in skipped
    ]


def _count_calls(report: ReportStage, stage: str, calls: int) -> Callable[[], None]:
    """Report that a stage begins; the result reports its calls."""
    numbers = iter(range(1, calls + 1))
    report(stage, 0, calls)
    return lambda: report(stage, next(numbers, calls), calls)

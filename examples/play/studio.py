"""Generation of what the page shows."""

from __future__ import annotations

import base64
import threading
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.config import UNMERGED, ToMeConfig
from ppdiffusers_tome.settings.step_schedule import MIN_STEPS, choose_computed_steps
from ppdiffusers_tome.tools.edges import detect_edges, fit_image
from ppdiffusers_tome.tools.generation.checks import check_loaded
from ppdiffusers_tome.tools.generation.prompts import check_text
from ppdiffusers_tome.tools.generation.settings import MAX_SEED, SIZE_MULTIPLE, ImageSettings
from ppdiffusers_tome.tools.images import read_image

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.generation.loaded_pipeline import GeneratedImage, LoadedPipeline

NONE, OWN, GIVEN = "none", "own", "given"  # a cache alone; method and ratio of the form; the settings of --config
_SIZE = (SIZE_MULTIPLE, 2**16, SIZE_MULTIPLE)
NUMBERS: dict[str, tuple[float, float, float]] = {  # least, most and step, to which whole numbers keep
    # Browsers represent whole numbers exactly up to this seed; 200 steps, or one user could keep all others waiting.
    "seed": (0, min(MAX_SEED, 2**53 - 1), 1), "steps": (1, 200, 1), "guidance": (0, 100, 0.5),
    "height": _SIZE, "width": _SIZE, "low": (0, 1000, 1), "high": (0, 1000, 1), "strength": (0, 10, 0.1),
    "ratio": (0.05, 0.7, 0.05), "cache": (0, 0.7, 0.1),
}  # fmt: skip
MAX_BYTES = 20 * 2**20  # of a photo's file
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # some others that Pillow reads run programs
Notes = list[tuple[str, dict[str, Any]]]  # keys of ``WORDS`` and their values


class Progress(NamedTuple):
    """A stage of a request, and its calls of the denoiser."""

    stage: str  # a key of ``WORDS``
    done: int
    calls: int


# It gets each call's progress, and None at times while other requests are served. What it raises ends the request.
Report = Callable[[Progress | None], None]
ShowImage = Callable[["GeneratedImage"], None]


class RefusedError(Exception):
    """A refusal: a key of ``WORDS`` and its values."""

    def __init__(self, reason: str, **values: Any) -> None:
        super().__init__(reason, values)
        self.reason, self.values = reason, values


@dataclass(frozen=True)
class ImageRequest:
    """A request for images; two are equal if their unmerged image is."""

    loaded: LoadedPipeline
    prompt: str
    tome: ToMeConfig = field(compare=False)
    warnings: Notes = field(compare=False)


@dataclass(frozen=True)
class ImagePair:
    """Both images of a request."""

    unmerged: GeneratedImage
    merged: GeneratedImage
    edges: Image.Image | None
    notes: Notes


class Studio:
    """A loaded pipeline that generates one image at a time.

    With a ControlNet, images are generated with edges (``guided``) and without (``plain``).
    """

    def __init__(self, settings: ImageSettings, prompt: str) -> None:
        from ppdiffusers_tome.tools.generation.loading import load_for_prompts

        self.plain, self.prompt = load_for_prompts(settings, [prompt]), prompt
        self.guided = None
        if settings.controlnet is not None:
            self.guided, pipe = self.plain, drop_controlnet(self.plain.pipe)
            self.guided.pipe.set_progress_bar_config(disable=True)
            self.plain = replace(self.plain, pipe=pipe, settings=replace(settings, controlnet=None))
        self.plain.pipe.set_progress_bar_config(disable=True)
        self._warm = set[Any]()  # settings
        self._last: tuple[ImageRequest, GeneratedImage] | None = None  # with its unmerged image
        # One thread for all images, as each thread that computes keeps memory of the mathematical libraries.
        self._worker, self._reading = ThreadPoolExecutor(1), threading.Lock()

    def prepare(self, form: Mapping[str, Any]) -> ImageRequest:
        """Turn what a page sent into a request.

        Raises:
            RefusedError: a field cannot be used, or the settings change nothing.
            ToMeError: only of what no page sends.
        """
        form = {**form, **{name: _check_number(name, form.get(name)) for name in NUMBERS}}
        prompt, negative_prompt = (str(form.get(name) or "").strip() for name in ("prompt", "negative_prompt"))
        check_text("prompt", prompt + negative_prompt)
        if not prompt:
            raise RefusedError("empty")
        if form["low"] > form["high"]:
            raise RefusedError("bad_thresholds")
        tome, base, edges = self._read_settings(form), self.plain, None
        if form.get("photo") is not None and self.guided is not None:
            with self._reading:  # one at a time, as decoding the most pixels takes a GiB
                fitted = fit_image(read_photo(form["photo"]), form["height"], form["width"])
            base, edges = self.guided, detect_edges(fitted, form["low"], form["high"])
        own = replace(
            base.settings, **{name: form[name] for name in ("seed", "steps", "height", "width")},
            guidance_scale=form["guidance"], controlnet_scale=form["strength"], negative_prompt=negative_prompt or None,
            tome=UNMERGED,
        )  # fmt: skip
        loaded = replace(base, settings=own, edges=edges)
        calls = loaded.count_calls()  # of some schedulers not one a step
        if tome.ratio == 0 and len(choose_computed_steps(calls, tome.cache)) == calls:
            raise RefusedError("no_change", steps=own.steps, least=MIN_STEPS)
        reason, values = "bad_negative" if negative_prompt else "bad_guidance", {}
        try:
            check_loaded(loaded)
            if loaded.labels is not None:
                reason, values = "unknown_class", {"last": loaded.labels.num_classes - 1}
                loaded.labels.find_class(prompt)
        except UserError:
            raise RefusedError(reason, **values) from None
        keys = [*loaded.describe_oddities(prompt)]
        if edges is not None and edges.getbbox() is None:
            keys.append("no_edges")
        subjects = ", ".join(own.model.subjects)
        return ImageRequest(loaded, prompt, tome, [(key, {"subjects": subjects}) for key in keys])

    def _read_settings(self, form: Mapping[str, Any]) -> ToMeConfig:
        preset, cache = form["preset"], form["cache"]
        if preset == GIVEN:
            return self.plain.settings.tome
        if preset == NONE:
            return ToMeConfig(0.0, cache=cache)
        if preset == OWN:
            return ToMeConfig(form["ratio"], method=form["method"], cache=cache)
        return replace(ToMeConfig.preset(preset), cache=cache)  # no file is read

    def compare(self, request: ImageRequest, report: Report, show_unmerged: ShowImage) -> ImagePair:
        """Generate both images after all that were asked for earlier.

        ``show_unmerged`` gets the unmerged image before the other is generated.
        """
        future = self._worker.submit(self._compare, request, report, show_unmerged)
        try:
            while not (future.running() or future.done()):
                report(None)
                wait([future], timeout=0.5)
            return future.result()
        finally:
            future.cancel()

    def _compare(self, request: ImageRequest, report: Report, show_unmerged: ShowImage) -> ImagePair:
        last, unmerged = self._last or (None, None)
        is_reused = last == request
        if unmerged is None or not is_reused:
            unmerged = self._generate(request, UNMERGED, report)
        self._last = request, unmerged
        show_unmerged(unmerged)
        merged = self._generate(request, request.tome, report)
        own = request.loaded.settings
        shown = {"prompt": request.prompt, "steps": own.steps, "seed": own.seed}
        notes: Notes = [("request_note", {**shown, "height": request.loaded.size[0], "width": request.loaded.size[1]})]
        notes += [
            ("applied_note", {"denoiser": each.denoiser, "settings": each.config.summary, "blocks": len(each.paths)})
            for each in request.loaded.entries
        ]
        for name, (count, calls) in request.loaded.count_skipped_calls().items():
            notes.append(("skipped_note", {"denoiser": name, "skipped": count, "calls": calls}))
        is_disturbed = unmerged.is_disturbed or merged.is_disturbed
        notes += [("measured_note", {}), *[("busy_note", {})] * is_disturbed, *[("reused_note", {})] * is_reused]
        return ImagePair(unmerged, merged, request.loaded.edges, notes)

    def _generate(self, request: ImageRequest, tome: ToMeConfig, report: Report) -> GeneratedImage:
        """Generate and measure an image after a warm-up for new settings."""
        loaded, image = request.loaded, (request.prompt, request.loaded.settings.seed)
        key = (loaded.edges is not None, loaded.size, loaded.guidance_scale > 1, tome)
        # Of programs only some are kept in memory, so that of other settings may be gone.
        if key not in self._warm or loaded.settings.compile is not None:
            count = _count_calls(report, "warm_up", loaded.count_warm_up_steps(tome))
            loaded.warm_up(tome, *image, after_step=count)
            self._warm.add(key)
        loaded.apply(tome)
        stage = "unmerged_image" if tome.changes_nothing else "merged_image"
        return loaded.generate(*image, after_step=_count_calls(report, stage, loaded.count_calls()))


def drop_controlnet(pipe: Any) -> Any:
    """Make a pipeline without the ControlNet from one with it.

    All other parts are shared, so ToMe is applied to both or neither; the progress bar is not.
    """
    import ppdiffusers

    kind = type(pipe).__name__.replace("ControlNet", "")
    parts = {name: part for name, part in pipe.components.items() if name != "controlnet"}
    own: dict[str, Any] = {}
    if "force_zeros_for_empty_prompt" in pipe.config:
        own["force_zeros_for_empty_prompt"] = pipe.config["force_zeros_for_empty_prompt"]
    if "safety_checker" in parts:
        own["requires_safety_checker"] = parts["safety_checker"] is not None
    return getattr(ppdiffusers, kind)(**parts, **own)


def read_photo(data: str) -> Image.Image:
    """Decode an image file in base64, at most 2048 pixels a side.

    Raises:
        RefusedError: it is no image of ``FORMATS``, or it has so many pixels that Pillow warns.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            photo = read_image(base64.b64decode(data), formats=FORMATS)
    except Exception as error:  # decoders of broken files raise anything
        most = (Image.MAX_IMAGE_PIXELS or 0) // 1_000_000
        raise RefusedError("no_image", formats=", ".join(FORMATS), most=most) from error
    photo.thumbnail((2048, 2048))
    return photo


def _check_number(name: str, value: Any) -> Any:
    """Return a number of the form; refuse what its field refuses."""
    least, most, step = NUMBERS[name]
    is_whole = isinstance(step, int)
    if type(value) in (int, float) and least <= value <= most and not (is_whole and value % step):
        return int(value) if is_whole else value
    reason = "bad_number" if not is_whole else "bad_whole" if step == 1 else "bad_multiple"
    raise RefusedError(reason, field=name, least=least, most=most, step=step)


def _count_calls(report: Report, stage: str, calls: int) -> Callable[[], None]:
    """Report that a stage begins; the result reports its calls."""
    numbers = iter(range(1, calls + 1))
    report(Progress(stage, 0, calls))
    return lambda: report(Progress(stage, next(numbers, calls), calls))

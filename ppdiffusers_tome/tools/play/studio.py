"""What the page draws and measures: the unmerged picture, the merged one, and the map of merged tokens.

Knows no gradio. One thread at a time may draw.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image

from ppdiffusers_tome.errors import ToMeError
from ppdiffusers_tome.merging.methods import METHODS
from ppdiffusers_tome.patching.recorder import MergeRecord, MergingBlock, merging_blocks
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.evaluate.runner import WARM_UP_STEPS
from ppdiffusers_tome.tools.figures.merged_sheets import first_of_levels, spread_calls
from ppdiffusers_tome.tools.figures.merging import groups_picture, merged_share, share_picture
from ppdiffusers_tome.tools.generation.edges import detect_edges, fit_image
from ppdiffusers_tome.tools.generation.loaded_pipeline import (
    LoadedPipeline,
    describe_truncation,
    describe_unknown_subject,
    describe_unusual_size,
    load_for_prompts,
)
from ppdiffusers_tome.tools.generation.memory import check_memory
from ppdiffusers_tome.tools.generation.model_loader import drop_controlnet
from ppdiffusers_tome.tools.generation.results import GeneratedImage
from ppdiffusers_tome.tools.generation.settings import Settings, get_memory_needs
from ppdiffusers_tome.tools.play.requests import Guide, Order, RefusedError, Wanted

WARMING_UP, UNMERGED, MERGED, MAP = STAGES = ("warming_up", "unmerged", "merged", "map")
_SHOWN_CALLS = 12  # of the denoiser, on the map: each is a picture to send
_SHOWN_PIXELS = 512
_MOST_WARM = 256  # ways to draw that are remembered to be warm
# Called whenever something went on: the stage, and how many of how many calls of the denoiser are done.
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Remembered:
    """An unmerged picture.

    Attributes:
        wanted: what it shows.
        drawn: itself, and what it took.
        at: when it was done, in seconds since 1970.
    """

    wanted: Wanted
    drawn: GeneratedImage
    at: float


@dataclass(frozen=True)
class MapPicture:
    """Groups of merged tokens over the picture, in one block and call.

    Attributes:
        block: which one.
        picture: the groups; None where the block ran unmerged.
        merged_away, tokens: how many of how many tokens were; of the last picture of a map, their mean over the calls.
    """

    block: MergingBlock
    picture: Image.Image | None
    merged_away: int
    tokens: int


@dataclass(frozen=True)
class MergedMap:
    """Which tokens merged where.

    Attributes:
        calls: how often the denoiser was called.
        by_call: of the calls that are shown, counted from 1, a picture for each block.
        often: how often each token merged, over all calls, a picture for each block.
    """

    calls: int
    by_call: dict[int, list[MapPicture]]
    often: list[MapPicture]


class Studio:
    """Pipelines that draw what people want.

    Args:
        settings: name the pipeline; with a ControlNet it draws with edges and without.
        prompts: one to begin with.
        default: whether nobody asked for it, see ``load_for_prompts``.

    Attributes:
        plain: the pipeline that draws from prompts alone, with the settings to begin with.
        guided: the same with a ControlNet; None where there is none.
        prompt: to begin with.

    Raises:
        UserError: the pipeline cannot be loaded, or this device cannot run it.
    """

    def __init__(self, settings: Settings, prompts: list[str], *, default: bool) -> None:
        loaded, (self.prompt,) = load_for_prompts(settings, prompts, default=default)
        loaded.pipe.set_progress_bar_config(disable=True)
        self.plain, self.guided = loaded, None
        if settings.controlnet is not None:
            self.guided, pipe = loaded, drop_controlnet(loaded.pipe)
            pipe.set_progress_bar_config(disable=True)
            self.plain = replace(loaded, pipe=pipe, settings=replace(settings, controlnet=None))
        self._warm: set[Any] = set()

    def check(self, order: Order) -> None:
        """Make sure, before it waits in line, that a picture fits into memory.

        Raises:
            RefusedError: it does not.
        """
        wanted = order.wanted
        if self.plain.labels is not None:
            return  # of one size, which is loaded
        for tome in (replace(order.tome, ratio=0.0), order.tome):
            settings = replace(self.plain.settings, tome=tome, guidance_scale=wanted.guidance_scale)
            try:
                check_memory(get_memory_needs(settings), wanted.height, wanted.width, prefix="")
            except ToMeError as error:
                raise RefusedError("memory", detail=error) from error

    def odd(self, wanted: Wanted) -> dict[str, str]:
        """What a person should know of a picture that is drawn all the same: details by what they are about."""
        if self.plain.labels is not None:
            return {}
        edges = None if wanted.guide is None else edges_of(wanted.guide, wanted.height, wanted.width)
        pipe, settings = self.plain.pipe, self.plain.settings
        found = {
            "too_long": describe_truncation(pipe, wanted.prompt),
            "not_understood": describe_unknown_subject(settings, wanted.prompt),
            "other_size": describe_unusual_size(settings.model, pipe, wanted.height, wanted.width),
            "no_edges": "" if edges is not None and edges.getbbox() is None else None,
        }
        return {what: detail for what, detail in found.items() if detail is not None}

    def unmerged(self, wanted: Wanted, report: Report) -> Remembered:
        """The picture without token merging; what ``report`` raises ends it."""
        loaded, edges = self._ready(wanted)
        return Remembered(wanted, self._timed(loaded, wanted, None, edges, report), time.time())

    def merged(self, wanted: Wanted, tome: ToMeConfig, unmerged: GeneratedImage, report: Report) -> GeneratedImage:
        """The picture with token merging, with its similarity to the unmerged one; what ``report`` raises ends it."""
        loaded, edges = self._ready(wanted)
        return self._timed(loaded, wanted, tome, edges, report).compare_with(unmerged.image)

    def merged_map(self, wanted: Wanted, tome: ToMeConfig, report: Report) -> MergedMap | None:
        """Which tokens merged; None where nothing merges into groups. It draws anew, as watching takes time."""
        if not METHODS[tome.method].compares:
            return None
        loaded, edges = self._ready(wanted)
        loaded.apply(tome)
        calls = loaded.count_calls()
        counted = _counter(report, MAP, calls)
        drawn, records = loaded.generate_traced(wanted.prompt, 0, edges, after_call=counted)
        if not records:
            return None
        picture = drawn.image.copy()
        picture.thumbnail((_SHOWN_PIXELS, _SHOWN_PIXELS))
        return _map(picture, first_of_levels(merging_blocks(loaded.pipe)), records, calls)

    def _ready(self, wanted: Wanted) -> tuple[LoadedPipeline, Image.Image | None]:
        """The pipeline with the settings of a picture, and its edges."""
        base = self.plain if wanted.guide is None or self.guided is None else self.guided
        settings = replace(
            base.settings, seed=wanted.seed, steps=wanted.steps, negative_prompt=wanted.negative_prompt,
            controlnet_scale=1.0 if wanted.guide is None else wanted.guide.scale,
        )  # fmt: skip
        loaded = replace(
            base, settings=settings, height=wanted.height, width=wanted.width, guidance_scale=wanted.guidance_scale
        )
        return loaded, None if wanted.guide is None else edges_of(wanted.guide, wanted.height, wanted.width)

    def _timed(
        self, loaded: LoadedPipeline, wanted: Wanted, tome: ToMeConfig | None, edges: Image.Image | None,
        report: Report,
    ) -> GeneratedImage:  # fmt: skip
        """A picture that is timed: what is drawn for the first time in this size and way warms up before."""
        loaded.apply(tome)
        way = (edges is not None, wanted.height, wanted.width, wanted.guidance_scale > 1, tome)
        if way not in self._warm:
            warming = _counter(report, WARMING_UP, WARM_UP_STEPS)
            loaded.generate(wanted.prompt, 0, edges, steps=WARM_UP_STEPS, after_call=warming)
            if len(self._warm) >= _MOST_WARM:
                self._warm.clear()
            self._warm.add(way)
        counted = _counter(report, UNMERGED if tome is None else MERGED, loaded.count_calls())
        return loaded.generate(wanted.prompt, 0, edges, after_call=counted)


def edges_of(guide: Guide, height: int, width: int) -> Image.Image:
    """The edges of a photo, white on black, at the size of a picture."""
    return detect_edges(fit_image(guide.photo, height, width), guide.low, guide.high)


def _counter(report: Report, stage: str, calls: int) -> Callable[[], None]:
    """To be called after each call of the denoiser, and reports how many there were; the first report is of none."""
    done = 0
    report(stage, 0, calls)

    def called() -> None:
        nonlocal done
        done += 1
        report(stage, min(done, calls), calls)

    return called


def _map(
    picture: Image.Image, blocks: Sequence[MergingBlock], records: Sequence[MergeRecord], calls: int
) -> MergedMap:
    own = {block: [record for record in records if record.block == block] for block in blocks}
    own = {block: found for block, found in own.items() if found}
    by_call = {}
    for call in spread_calls(calls, _SHOWN_CALLS):
        by_call[call + 1] = [_groups(picture, block, call, found) for block, found in own.items()]
    return MergedMap(calls, by_call, [_often(picture, block, calls, found) for block, found in own.items()])


def _groups(picture: Image.Image, block: MergingBlock, call: int, records: Sequence[MergeRecord]) -> MapPicture:
    record = next((record for record in records if record.call == call), None)
    if record is None:
        return MapPicture(block, None, 0, records[0].grid.num_tokens)
    return MapPicture(block, groups_picture(picture, record), record.num_merged, record.grid.num_tokens)


def _often(picture: Image.Image, block: MergingBlock, calls: int, records: Sequence[MergeRecord]) -> MapPicture:
    shown = share_picture(picture, records[0].grid, merged_share(records, calls))
    away = round(sum(record.num_merged for record in records) / calls)
    return MapPicture(block, shown, away, records[0].grid.num_tokens)

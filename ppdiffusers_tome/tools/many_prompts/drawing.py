"""``generate --prompts``: the pictures of a file, in batches, on one rank or many, going on where it was stopped."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.exporting.installed import installed_version
from ppdiffusers_tome.tools.drawing.edges import EdgeSource
from ppdiffusers_tome.tools.drawing.finding import BUNDLED, find_controlnet
from ppdiffusers_tome.tools.drawing.settings import Settings, settings_from
from ppdiffusers_tome.tools.many_prompts.batches import Batch, Kind, form_batches
from ppdiffusers_tome.tools.many_prompts.prompts import SKIP, STOP, BadLine, Line, check_within, read_prompts
from ppdiffusers_tome.tools.many_prompts.ranks import Ranks

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.tools.drawing.studio import Studio
    from ppdiffusers_tome.tools.many_prompts.folder import Part
    from ppdiffusers_tome.tools.measuring.measure import Measured


def draw_file(args: argparse.Namespace) -> None:
    """Draw what a file of prompts asks for and is not there yet.

    Raises:
        UserError: the arguments, the file or the folder cannot be used, a line cannot be drawn and ``--on-error`` is
            ``stop``, or the disk is full. The same command then goes on from there.
    """
    if args.prompt:
        raise UserError("--prompt and --prompts were both given; write all prompts into the file")
    if args.batch_size is not None and args.batch_size < 1:
        raise UserError(f"--batch-size {args.batch_size} must be 1 or more")
    if args.pictures_within is not None and not os.path.isdir(args.pictures_within):  # Path raises at long names
        raise UserError(f"--pictures-within {args.pictures_within} is no folder; give the one that holds the pictures")
    ranks = Ranks.from_environment()
    # A ControlNet may be named for lines that bring their own edges.
    settings = settings_from(args, args.ratio, edges_drawn=True)
    lines, bad = read_prompts(
        args.prompts, first_seed=settings.seed, tome=settings.tome, pictures_within=args.pictures_within
    )
    settings = _with_controlnet(args, settings, lines)
    _tell_bad(args, bad, ranks)
    from ppdiffusers_tome.tools.console.output import one_line_warnings, quiet_libraries
    from ppdiffusers_tome.tools.many_prompts.folder import put_in_order

    if not ranks.is_first:
        with quiet_libraries():
            _draw(args, settings, lines, ranks, None)
        return
    identity = _identity(args, settings)
    with one_line_warnings():
        folder, part = put_in_order(args.output, args.prompts, identity, lines, overwrite=args.overwrite)
    drawn, speed = 0, None
    with part:  # until all is gathered: another run that began before that would lose its own part
        if ranks.size > 1 or not all(folder.is_done(line) for line in lines):
            with quiet_libraries():
                drawn, speed = _draw(args, settings, lines, ranks, part)
        with one_line_warnings():
            _report(args, lines, bad, drawn, speed, ranks)


def _with_controlnet(args: argparse.Namespace, settings: Settings, lines: Sequence[Line]) -> Settings:
    """Settings with a ControlNet if any line has edges of its own."""
    controlled = [line for line in lines if line.control is not None]
    if settings.controlnet is None and controlled:
        if not settings.model.bundled:
            raise UserError(
                f"--prompts {args.prompts}, line {controlled[0].line}: a control image needs a ControlNet that fits "
                "the model; name one with --controlnet"
            )
        return replace(settings, controlnet=find_controlnet(BUNDLED))
    if settings.controlnet is not None and settings.edges is None and not controlled:
        raise UserError(
            "--controlnet needs edges; give lines an image or control_image, or all of them one with --image or "
            "--control-image"
        )
    return settings


def _tell_bad(args: argparse.Namespace, bad: Sequence[BadLine], ranks: Ranks) -> None:
    """Lines that cannot be read stop the run before it begins, or are skipped; all ranks know them, one tells."""
    if not bad:
        return
    if args.on_error != SKIP:
        from ppdiffusers_tome.tools.many_prompts.share import stopping

        more = f" ({len(bad) - 1} more lines are bad)" if len(bad) > 1 else ""
        raise UserError(stopping(args.prompts, bad[0].line, bad[0].error) + more)
    if ranks.is_first:
        from ppdiffusers_tome.tools.console.output import warn

        for each in bad:
            warn(f"--prompts {args.prompts}, line {each.line} is skipped: {each.error}")


def _identity(args: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """All that the pictures depend on besides their lines, known before anything slow is imported."""
    edges = settings.edges
    return {
        "model": settings.model.name, "controlnet": args.controlnet, "scale": settings.controlnet_scale,
        "edges": None if edges is None else [edges.option, str(edges.path)],
        "canny": [args.canny_low, args.canny_high], "tome": settings.tome.to_dict(), "height": settings.height,
        "width": settings.width, "steps": settings.steps, "guidance_scale": settings.guidance_scale,
        "scheduler": settings.scheduler, "negative_prompt": settings.negative_prompt, "dtype": settings.dtype,
        "xformers": settings.xformers, "chunked_attention": settings.chunked_attention,
        "batch_size": args.batch_size or 1, "versions": _versions(),
    }  # fmt: skip


def _versions() -> dict[str, str]:
    """Of all packages that decide over a picture's bits, as far as they are installed."""
    names = ("ppdiffusers-tome", "ppdiffusers", "paddlepaddle", "paddlepaddle-gpu")
    return {name: version for name in names if (version := installed_version(name)) is not None}


def _draw(
    args: argparse.Namespace, settings: Settings, lines: Sequence[Line], ranks: Ranks, first_part: Part | None
) -> tuple[int, float | None]:
    """What every rank does once rank 0 has put the folder in order, and has its part.

    Returns:
        How many pictures all ranks drew, and how many a second; None where there were none.
    """
    from ppdiffusers_tome.tools.many_prompts.folder import Folder, Part

    ranks.join()
    _check_shared(args.output, ranks, first_part)
    folder = Folder(args.output)
    done = {line.number for line in lines if folder.is_done(line)}
    batches = form_batches(
        lines, args.batch_size or 1, all_controlled=settings.edges is not None,
        all_negative=settings.negative_prompt is not None,
    )  # fmt: skip
    left = [batch for batch in batches if any(line.number not in done for line in batch.lines)]
    (counted,) = ranks.total([len(left)], "counted")  # nobody draws before all have counted
    if counted != len(left) * ranks.size:
        raise UserError(f"--prompts {args.prompts} is not the same file on all machines; give all the same one")
    with nullcontext(first_part) if first_part else Part(args.output, ranks.rank) as part:
        artist, mine = Painter(settings, args), ranks.share(left)
        if mine:
            artist.open(mine[0].kind)
        start = time.perf_counter()
        drawn = _draw_share(args, settings, artist, part, mine, done)
    (drawn,) = ranks.total([drawn], "finished")
    seconds = time.perf_counter() - start
    ranks.leave()
    return drawn, drawn / seconds if drawn else None


def _draw_share(
    args: argparse.Namespace, settings: Settings, artist: Painter, part: Part, batches: Sequence[Batch], done: set[int]
) -> int:
    """Draw what falls to this rank; returns how many pictures that were."""
    from tqdm import tqdm

    from ppdiffusers_tome.tools.console.output import say, warn
    from ppdiffusers_tome.tools.many_prompts.folder import run_checksum
    from ppdiffusers_tome.tools.many_prompts.share import Share

    number = sum(line.number not in done for batch in batches for line in batch.lines)
    with tqdm(total=number, desc="pictures", position=0, disable=None) as bar:

        def tell(text: str) -> None:
            say(text)
            bar.update()

        share = Share(
            artist, args.output, part, run_checksum(_identity(args, settings)), args.prompts,
            args.on_error or STOP, args.overwrite, tell, warn,
        )  # fmt: skip
        share.draw(batches, done)
    return share.drawn


def _check_shared(output: Path, ranks: Ranks, first_part: Part | None) -> None:
    """All ranks see what rank 0 has just written.

    Raises:
        UserError: this rank sees another folder.
    """
    import random

    from ppdiffusers_tome.tools.many_prompts.folder import holds_run

    token = 0
    if first_part is not None and ranks.size > 1:
        token = random.SystemRandom().getrandbits(62)
        first_part.add({"run": token})
    (token,) = ranks.total([token], "in order")
    if first_part is None and not holds_run(output, token):
        raise UserError(
            f"--output {output} of rank {ranks.rank} is not that of rank 0; give a folder that all machines share"
        )


def _report(
    args: argparse.Namespace, lines: Sequence[Line], bad: Sequence[BadLine], drawn: int, speed: float | None,
    ranks: Ranks,
) -> None:  # fmt: skip
    """Rank 0 makes one manifest of all parts, and tells the sum."""
    from ppdiffusers_tome.tools.console.output import say
    from ppdiffusers_tome.tools.many_prompts.folder import SKIPPED, Folder

    folder = Folder(args.output)
    skipped = [*bad, *folder.gather()]
    folder.write_skipped(skipped)
    there = sum(folder.is_done(line) for line in lines)
    told = f"{there} of {len(lines) + len(bad)} pictures are in {args.output}"
    told += f": {drawn} drawn now, {there - drawn} before"
    if speed is not None:
        told += f"; {speed:.3g} pictures a second" + (f" on {ranks.size} ranks" if ranks.size > 1 else "")
    if skipped:
        told += f"; {len(skipped)} skipped, see {args.output / SKIPPED}"
    say(told)


class Painter:
    """Draws lines with the pipeline that they need, one pipeline in memory at a time.

    Args:
        settings: of the command line, which lines may change for themselves.
        args: for the thresholds of lines that bring a photo, and the folder that it must be in.
    """

    def __init__(self, settings: Settings, args: argparse.Namespace) -> None:
        self._settings, self._canny = settings, (args.canny_low, args.canny_high)
        self._pictures_within: Path | None = args.pictures_within
        self._studio: Studio | None = None

    def check(self, kind: Kind, line: Line) -> None:
        """As ``share.Artist`` says."""
        from ppdiffusers_tome.tools.drawing.studio import too_long

        pipe = self.open(kind).pipe
        for name, text in (("prompt", line.prompt), ("negative_prompt", self._negative(line))):
            if complaint := too_long(pipe, text):
                raise UserError(f"{name} {complaint}; shorten it")
        if kind.controlled:
            self._edges(line).check()

    def draw(self, kind: Kind, lines: Sequence[Line]) -> Measured[list[Image.Image]]:
        """As ``share.Artist`` says."""
        from ppdiffusers_tome.tools.drawing.sampling import draw_together
        from ppdiffusers_tome.tools.measuring.measure import measured

        studio, settings = self._of_kind(kind), self._settings
        studio.set_ratio(settings.tome.ratio if kind.ratio is None else kind.ratio)
        edges = [studio.load_edges(self._edges(line)) for line in lines] if kind.controlled else None
        negatives = [self._negative(line) or "" for line in lines] if kind.has_negative_prompt else None
        return measured(
            lambda mark: draw_together(
                studio.pipe, [line.prompt for line in lines], height=studio.height, width=studio.width,
                seeds=[line.seed for line in lines], steps=settings.steps, guidance_scale=settings.guidance_scale,
                negative_prompts=negatives, edges=edges, controlnet_scale=settings.controlnet_scale, after_step=mark,
            )
        )  # fmt: skip

    def describe(self, kind: Kind, line: Line) -> dict[str, Any]:
        """As ``share.Artist`` says."""
        studio = self._of_kind(kind)
        settings = replace(studio.settings, seed=line.seed, negative_prompt=self._negative(line))
        if kind.controlled:
            settings = replace(settings, edges=self._edges(line))
        ratio = settings.tome.ratio if kind.ratio is None else kind.ratio
        return replace(studio, settings=settings).describe(line.prompt, 0, ratio)

    def free(self) -> None:
        """As ``share.Artist`` says."""
        import gc

        import paddle

        gc.collect()
        if paddle.get_device().startswith("gpu"):
            paddle.device.cuda.empty_cache()

    def open(self, kind: Kind) -> Studio:
        """The pipeline that a kind of line needs."""
        from ppdiffusers_tome.tools.drawing.studio import open_studio

        if self._studio is None or (self._studio.settings.controlnet is not None) != kind.controlled:
            self._studio = None
            self.free()
            settings = self._settings if kind.controlled else replace(self._settings, controlnet=None, edges=None)
            # Native sizes are wanted where a line names none; prompts are checked line by line.
            self._studio = open_studio(replace(settings, negative_prompt=None), [])
        return self._studio

    def _of_kind(self, kind: Kind) -> Studio:
        studio = self.open(kind)
        return replace(studio, height=kind.height or studio.height, width=kind.width or studio.width)

    def _negative(self, line: Line) -> str | None:
        return self._settings.negative_prompt if line.negative_prompt is None else line.negative_prompt

    def _edges(self, line: Line) -> EdgeSource:
        if line.control is None:
            assert self._settings.edges is not None
            return self._settings.edges
        if self._pictures_within is not None:  # once more: hours may have passed since the file of prompts was read
            try:
                check_within(line.control, self._pictures_within)
            except ValueError as error:
                raise UserError(str(error)) from error
        return EdgeSource(line.control, "--image" if line.image is not None else "--control-image", *self._canny)

"""``generate --prompts``: the pictures of a file, in batches, on one rank or many, resuming where it was stopped."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.exporting.installed import installed_version
from ppdiffusers_tome.tools.console.output import one_line_warnings, print_line, quiet_libraries, warn
from ppdiffusers_tome.tools.drawing.finding import BUNDLED, find_controlnet
from ppdiffusers_tome.tools.drawing.settings import Settings, settings_from
from ppdiffusers_tome.tools.many_prompts.batches import Batch, form_batches
from ppdiffusers_tome.tools.many_prompts.folder import SKIPPED, OutputFolder, holds_run, rank_manifest, run_checksum
from ppdiffusers_tome.tools.many_prompts.line import STOP, BadLine, Line
from ppdiffusers_tome.tools.many_prompts.preparing import prepare_output
from ppdiffusers_tome.tools.many_prompts.prompts import read_prompts
from ppdiffusers_tome.tools.many_prompts.ranks import Ranks
from ppdiffusers_tome.tools.measuring.clock import DeviceClock

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.measuring.json_lines import Writer


def draw_file(args: argparse.Namespace) -> None:
    """Draw what a file of prompts asks for and is not there yet.

    Raises:
        UserError: the arguments, the file or the folder cannot be used, a line cannot be drawn and ``--on-error`` is
            ``stop``, or the disk is full. The same command then resumes from there.
    """
    _check_arguments(args)
    ranks = Ranks.from_environment()
    # A ControlNet may be named for lines that bring their own edges.
    settings = settings_from(args, args.ratio, edges_drawn=True)
    lines, bad = read_prompts(
        args.prompts, first_seed=settings.seed, tome=settings.tome, pictures_within=args.pictures_within
    )
    settings = _with_controlnet(settings, lines, args.prompts)
    _report_bad_lines(args, bad, ranks)
    if not ranks.is_first:
        with quiet_libraries():
            _draw(args, settings, lines, ranks, None)
        return
    with one_line_warnings():
        folder, manifest = prepare_output(
            args.output, args.prompts, _identity(args, settings), lines, overwrite=args.overwrite
        )
    drawn, speed = 0, None
    with manifest:  # until all is gathered: another run that began before that would lose its own
        if ranks.size > 1 or not all(folder.is_done(line) for line in lines):
            with quiet_libraries():
                drawn, speed = _draw(args, settings, lines, ranks, manifest)
        with one_line_warnings():
            _report(args.output, lines, bad, drawn, speed, ranks)


def _check_arguments(args: argparse.Namespace) -> None:
    if args.prompt:
        raise UserError("--prompt and --prompts were both given; write all prompts into the file")
    if args.batch_size is not None and args.batch_size < 1:
        raise UserError(f"--batch-size {args.batch_size} must be 1 or more")
    if args.pictures_within is not None and not os.path.isdir(args.pictures_within):  # Path raises at long names
        raise UserError(f"--pictures-within {args.pictures_within} is no folder; give the one that holds the pictures")


def _with_controlnet(settings: Settings, lines: Sequence[Line], prompts: Path) -> Settings:
    """Settings with a ControlNet if any line has edges of its own."""
    controlled = [line for line in lines if line.control is not None]
    if settings.controlnet is None and controlled:
        if not settings.model.bundled:
            raise UserError(
                f"--prompts {prompts}, line {controlled[0].line}: a control image needs a ControlNet that fits the "
                "model; name one with --controlnet"
            )
        return replace(settings, controlnet=find_controlnet(BUNDLED))
    if settings.controlnet is not None and settings.edges is None and not controlled:
        raise UserError(
            "--controlnet needs edges; give lines an image or control_image, or all of them one with --image or "
            "--control-image"
        )
    return settings


def _report_bad_lines(args: argparse.Namespace, bad: Sequence[BadLine], ranks: Ranks) -> None:
    """Lines that cannot be read stop the run before it begins, or are skipped; all ranks know them, one reports."""
    if bad and (args.on_error or STOP) == STOP:
        more = f" ({len(bad) - 1} more lines are bad)" if len(bad) > 1 else ""
        raise UserError(bad[0].stopping(args.prompts) + more)
    for each in bad if ranks.is_first else ():
        warn(each.skipping(args.prompts))


def _identity(args: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """All that the pictures depend on besides their lines, known before anything slow is imported."""
    edges = settings.edges
    packages = ("ppdiffusers-tome", "ppdiffusers", "paddlepaddle", "paddlepaddle-gpu")
    return {
        **{name: value for name, value in vars(settings).items() if name != "seed"},
        "model": settings.model.name, "controlnet": args.controlnet, "tome": settings.tome.to_dict(),
        "edges": None if edges is None else [edges.option, str(edges.path)],
        "canny": [args.canny_low, args.canny_high], "batch_size": args.batch_size or 1,
        "versions": {name: version for name in packages if (version := installed_version(name)) is not None},
    }  # fmt: skip


def _draw(
    args: argparse.Namespace, settings: Settings, lines: Sequence[Line], ranks: Ranks, manifest: Writer | None
) -> tuple[int, float | None]:
    """What every rank does once rank 0 has prepared the folder, and has its manifest.

    Returns:
        How many pictures all ranks drew, and how many a second; None where there were none.
    """
    ranks.join()
    _check_shared(args.output, ranks, manifest)
    folder = OutputFolder(args.output)
    done = {line.number for line in lines if folder.is_done(line)}
    batches = form_batches(
        lines, args.batch_size or 1, all_controlled=settings.edges is not None,
        all_negative=settings.negative_prompt is not None,
    )  # fmt: skip
    left = [batch for batch in batches if any(line.number not in done for line in batch.lines)]
    (counted,) = ranks.total([len(left)], "counted")  # nobody draws before all have counted
    if counted != len(left) * ranks.size:
        raise UserError(f"--prompts {args.prompts} is not the same file on all machines; give all the same one")
    with nullcontext(manifest) if manifest else rank_manifest(args.output, ranks.rank) as own:
        drawn, clock = _draw_shard(args, settings, own, ranks.shard(left), done)
    (drawn,) = ranks.total([drawn], "finished")
    seconds = clock.lap()
    ranks.leave()
    return drawn, drawn / seconds if drawn else None


def _draw_shard(
    args: argparse.Namespace, settings: Settings, manifest: Writer, batches: Sequence[Batch], done: set[int]
) -> tuple[int, DeviceClock]:
    """Draw what falls to this rank; returns how many pictures that were, and a clock that began with the first."""
    from tqdm import tqdm

    from ppdiffusers_tome.tools.many_prompts.line_pipeline import LinePipeline
    from ppdiffusers_tome.tools.many_prompts.shard import Shard

    pipeline = LinePipeline(settings, (args.canny_low, args.canny_high), args.pictures_within)
    if batches:
        pipeline.load(batches[0].kind)
    clock = DeviceClock()
    left = sum(line.number not in done for batch in batches for line in batch.lines)
    with tqdm(total=left, desc="pictures", position=0, disable=None) as bar:
        shard = Shard(
            pipeline, args.output, manifest, run_checksum(_identity(args, settings)), args.prompts,
            args.on_error or STOP, args.overwrite, bar,
        )  # fmt: skip
        shard.draw(batches, done)
    return shard.drawn, clock


def _check_shared(output: Path, ranks: Ranks, manifest: Writer | None) -> None:
    """All ranks see what rank 0 has just written.

    Raises:
        UserError: this rank sees another folder.
    """
    import random

    token = 0
    if manifest is not None and ranks.size > 1:
        token = random.SystemRandom().getrandbits(62)
        manifest.add({"run": token})
    (token,) = ranks.total([token], "prepared")
    if manifest is None and not holds_run(output, token):
        raise UserError(
            f"--output {output} of rank {ranks.rank} is not that of rank 0; give a folder that all machines share"
        )


def _report(
    output: Path, lines: Sequence[Line], bad: Sequence[BadLine], drawn: int, speed: float | None, ranks: Ranks
) -> None:
    """Rank 0 makes one manifest of all ranks', and reports the sum."""
    folder = OutputFolder(output)
    skipped = [*bad, *folder.gather()]
    folder.write_skipped(skipped)
    there = sum(folder.is_done(line) for line in lines)
    report = f"{there} of {len(lines) + len(bad)} pictures are in {output}: {drawn} drawn now, {there - drawn} before"
    if speed is not None:
        report += f"; {speed:.3g} pictures a second" + (f" on {ranks.size} ranks" if ranks.size > 1 else "")
    if skipped:
        report += f"; {len(skipped)} skipped, see {output / SKIPPED}"
    print_line(report)

"""``generate --prompts``: the pictures of a file, in batches, on one rank or many, resuming where it was stopped."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.export.versions import installed_version
from ppdiffusers_tome.tools.batch.batches import Kind
from ppdiffusers_tome.tools.batch.chunks import Chunk, read_index
from ppdiffusers_tome.tools.batch.finding import find_chunks, read_chunk
from ppdiffusers_tome.tools.batch.folder import SKIPPED, holds_run, rank_manifest
from ppdiffusers_tome.tools.batch.gathering import Gathering
from ppdiffusers_tome.tools.batch.line import STOP, BadLine
from ppdiffusers_tome.tools.batch.line_pipeline import EdgeSettings, LinePipeline, check_without_model
from ppdiffusers_tome.tools.batch.preparing import prepare_output
from ppdiffusers_tome.tools.batch.prompts import PromptsFile
from ppdiffusers_tome.tools.batch.ranks import Ranks
from ppdiffusers_tome.tools.batch.run import IMAGES_PER_FOLDER, Run
from ppdiffusers_tome.tools.batch.shard import Shard
from ppdiffusers_tome.tools.batch.share import draw_share
from ppdiffusers_tome.tools.cli.console.output import log, print_line, quiet_libraries, shorten_warnings, warn
from ppdiffusers_tome.tools.generation.model_sources import BUNDLED, find_controlnet
from ppdiffusers_tome.tools.generation.settings import NEEDS_CONTROLNET, Settings, parse_settings

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.measure.json_lines import Writer

_MOST_PICTURES = 7000  # in a folder: manifests, and what ranks keep while they draw, are beside them


def draw_file(args: argparse.Namespace) -> None:
    """Draw what a file of prompts asks for and is not there yet.

    Raises:
        UserError: the arguments, the file or the folder cannot be used, a line cannot be drawn and ``--on-error`` is
            ``stop``, or the disk is full. The same command then resumes from there.
    """
    _check_arguments(args)
    # A ControlNet may be named for lines that bring their own edges.
    settings = parse_settings(args, args.ratio, provides_edges=True)
    ranks, run, file = Ranks.from_environment(), _run_of(args, settings), PromptsFile(args.prompts)
    edges = EdgeSettings(args.canny_low, args.canny_high, args.fit)
    if not ranks.is_first:
        with quiet_libraries():
            _check_shared(run, ranks, None)
            chunks = list(read_index(run.output).values())
            pipeline = _pipeline(args, settings, edges, run, file, chunks)
            with rank_manifest(run.output, ranks.rank) as manifest:
                _draw(pipeline, run, file, ranks, chunks, manifest)
        return
    with shorten_warnings():
        # A run that skips what cannot be drawn loses nothing by meeting it late.
        check = check_without_model(settings, edges) if run.on_error == STOP else None
        known = read_index(run.output)
        log(f"checking the lines of {run.prompts} ...")
        chunks = find_chunks(run, file, known, lambda *found: _report_bad_lines(run, *found), check)
        pipeline = _pipeline(args, settings, edges, run, file, chunks)
        chunks, manifest = prepare_output(run, file, chunks)
    gathering, drawn, speed = Gathering(run, list(chunks), manifest), 0, None
    with manifest:  # until all is gathered: another run that began before that would lose its own
        if ranks.size > 1 or any(any(chunk.left) for chunk in chunks):
            with quiet_libraries():
                _check_shared(run, ranks, manifest)
                drawn, speed = _draw(pipeline, run, file, ranks, chunks, manifest, gathering)
        with shorten_warnings():
            gathering.end()
        _report(run, gathering.chunks, drawn, speed, ranks)


def _check_arguments(args: argparse.Namespace) -> None:
    if args.prompt:
        raise UserError("--prompt and --prompts were both given; write all prompts into the file")
    if args.batch_size is not None and args.batch_size < 1:
        raise UserError(f"--batch-size {args.batch_size} must be 1 or more")
    if args.images_per_folder is not None and not 1 <= args.images_per_folder <= _MOST_PICTURES:
        raise UserError(
            f"--images-per-folder {args.images_per_folder} must be from 1 to {_MOST_PICTURES}, so that no folder "
            f"holds more than 10,000 files; {IMAGES_PER_FOLDER} is usual"
        )
    if args.image_root is not None and not os.path.isdir(args.image_root):  # Path raises at long names
        raise UserError(f"--image-root {args.image_root} is not a folder; give the one with the pictures")


def _run_of(args: argparse.Namespace, settings: Settings) -> Run:
    return Run(
        args.prompts, args.output, _identity(args, settings), settings.tome, settings.seed, args.batch_size or 1,
        args.images_per_folder or IMAGES_PER_FOLDER,
        all_controlled=settings.edges is not None, all_negative=settings.negative_prompt is not None,
        image_root=args.image_root, on_error=args.on_error or STOP, overwrite=args.overwrite,
    )  # fmt: skip


def _identity(args: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """All that the pictures depend on besides their lines, known before anything slow is imported."""
    edges = settings.edges
    packages = ("ppdiffusers-tome", "ppdiffusers", "paddlepaddle", "paddlepaddle-gpu")
    return {
        **{name: value for name, value in vars(settings).items() if name != "seed"},
        "model": settings.model.name, "controlnet": args.controlnet, "tome": settings.tome.to_dict(),
        "edges": None if edges is None else [edges.option, str(edges.path)],
        "canny": [args.canny_low, args.canny_high], "fit": args.fit, "batch_size": args.batch_size or 1,
        "images_per_folder": args.images_per_folder or IMAGES_PER_FOLDER,
        "versions": {name: version for name in packages if (version := installed_version(name)) is not None},
    }  # fmt: skip


def _pipeline(
    args: argparse.Namespace, settings: Settings, edges: EdgeSettings, run: Run, file: PromptsFile,
    chunks: Sequence[Chunk],
) -> LinePipeline:  # fmt: skip
    """What draws the lines: with a ControlNet if any has edges of its own. Nothing is loaded yet."""
    controlled = None
    if settings.model.labels is None:  # what draws classes is no pipeline for a ControlNet; each line is told so
        controlled = next((chunk for chunk in chunks if chunk.controlled), None)
    if settings.controlnet is None and controlled is not None:
        if not settings.model.bundled:
            line = next(line for line in read_chunk(run, file, controlled)[0] if line.control is not None)
            raise UserError(f"--prompts {run.prompts}, line {line.line}: a control image {NEEDS_CONTROLNET}")
        settings = replace(settings, controlnet=find_controlnet(BUNDLED))
    elif settings.controlnet is not None and settings.edges is None and controlled is None:
        raise UserError(
            "--controlnet needs edges; give lines an image or control_image, or all of them one with --image or "
            "--control-image"
        )
    return LinePipeline(settings, edges, args.image_root)


def _report_bad_lines(run: Run, chunk: Chunk, bad: Sequence[BadLine]) -> None:
    """Lines that cannot be read stop the run before it begins, or are skipped."""
    if run.on_error == STOP:
        read = f" as far as line {chunk.line + chunk.lines - 1}" if chunk.entries == run.images_per_folder else ""
        others = "1 more line is bad" if len(bad) == 2 else f"{len(bad) - 1} more lines are bad"
        more = f" ({others}{read})" if len(bad) > 1 else ""
        raise UserError(bad[0].stopping(run.prompts) + more)
    for each in bad:
        warn(each.skipping(run.prompts))


def _draw(
    pipeline: LinePipeline, run: Run, file: PromptsFile, ranks: Ranks, chunks: Sequence[Chunk], manifest: Writer,
    gathering: Gathering | None = None,
) -> tuple[int, float | None]:  # fmt: skip
    """What every rank does once rank 0 has prepared the folder, and has its manifest.

    Returns:
        How many pictures all ranks drew, and how many a second; None where there were none.
    """
    from tqdm import tqdm

    left = sum(sum(chunk.left) for chunk in chunks)
    for chunk in chunks[:1]:
        read_chunk(run, file, chunk)
    counted = sum(ranks.exchange(left, "counted"))  # nobody draws before all have counted
    if counted != left * ranks.size:
        raise UserError(f"--output {run.output} does not look the same to all ranks; give the same command again")
    if gathering is not None:
        manifest.empty()  # of what all have seen by now
    if ranks.is_first and left and run.on_error == STOP and pipeline.settings.model.folder is None:
        _check_classes(pipeline, run, file, chunks)
    with tqdm(desc="pictures", position=0, disable=None) as bar:
        shard = Shard(pipeline, run, bar)
        draw_share(run, file, ranks, chunks, manifest, shard, gathering.drawn if gathering else lambda *_: None)
    drawn = sum(ranks.exchange(shard.drawn, "finished"))
    seconds = shard.clock.lap() if shard.clock else 0.0
    ranks.leave()
    return drawn, drawn / seconds if seconds else None


def _check_classes(pipeline: LinePipeline, run: Run, file: PromptsFile, chunks: Sequence[Chunk]) -> None:
    """Of a hub's pipeline only now is it known whether it draws classes: before the first is drawn, all lines name one.

    Raises:
        UserError: a line does not, or asks for what only pipelines with prompts take.
    """
    labels = pipeline.labels()
    if labels is None:
        return
    for chunk in chunks:
        for line in read_chunk(run, file, chunk)[0] if any(chunk.left) else []:
            try:
                pipeline.check(Kind(run.is_controlled(line), None, None, None, False), line)
            except UserError as error:
                raise UserError(BadLine(line.number, line.line, str(error), True).stopping(run.prompts)) from error


def _check_shared(run: Run, ranks: Ranks, manifest: Writer | None) -> None:
    """All ranks see what rank 0 has just written.

    Raises:
        UserError: this rank sees another folder.
    """
    import random

    token = 0
    if manifest is not None and ranks.size > 1:
        token = random.SystemRandom().getrandbits(62)
        manifest.add({"run": token})
    token = ranks.exchange(token, "prepared")[0]
    if manifest is None and not holds_run(run.output, token):
        raise UserError(
            f"--output {run.output} of rank {ranks.rank} is not that of rank 0; give a folder that all machines share"
        )


def _report(run: Run, chunks: Sequence[Chunk], drawn: int, speed: float | None, ranks: Ranks) -> None:
    """What there is now, on all ranks."""
    progress = [chunk.progress or chunk.untouched for chunk in chunks]
    there, skipped = sum(each.drawn for each in progress), sum(each.skipped for each in progress)
    total = sum(chunk.entries for chunk in chunks)
    report = f"{there} of {total} pictures are in {run.output}: {drawn} drawn now, {there - drawn} before"
    if speed is not None:
        report += f"; {speed:.3g} pictures a second" + (f" on {ranks.size} ranks" if ranks.size > 1 else "")
    if skipped:
        where = run.output / SKIPPED if len(chunks) == 1 else f"the {SKIPPED} of their folders"
        report += f"; {skipped} skipped, see {where}"
    print_line(report)

"""Going through the chunks: every rank draws its share of each. Knows no Paddle.

Ranks do not wait for each other between chunks. What falls to whom follows from what was left when the run began, so a
chunk's manifest may change meanwhile only when the whole chunk is drawn; whoever comes later has no share of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import nullcontext
from pathlib import Path

from ppdiffusers_tome.tools.batch.batches import Batch, form_batches
from ppdiffusers_tome.tools.batch.chunks import CONTROLLED, PLAIN, Chunk
from ppdiffusers_tome.tools.batch.finding import read_chunk
from ppdiffusers_tome.tools.batch.folder import OutputFolder, rank_manifest
from ppdiffusers_tome.tools.batch.line import Line
from ppdiffusers_tome.tools.batch.looking import left_of
from ppdiffusers_tome.tools.batch.prompts import PromptsFile
from ppdiffusers_tome.tools.batch.ranks import Ranks
from ppdiffusers_tome.tools.batch.run import Run
from ppdiffusers_tome.tools.batch.shard import Shard
from ppdiffusers_tome.tools.files import prepare_folder
from ppdiffusers_tome.tools.measure.json_lines import Writer


def draw_share(
    run: Run, file: PromptsFile, ranks: Ranks, chunks: Sequence[Chunk], manifest: Writer, shard: Shard,
    drawn: Callable[[int, int], None],
) -> None:  # fmt: skip
    """Draw what falls to a rank: what no edges guide in all chunks, then the rest, so that one pipeline is in memory.

    Args:
        run, file: what is asked for.
        ranks: which rank this is.
        chunks: with their progress of when the run began, the same on all ranks.
        manifest: this rank's part of the first chunk's manifest, which it holds as long as it draws.
        shard: draws.
        drawn: told, by the place of a chunk and the kind, when this rank's share of its lines of that kind is drawn.

    Raises:
        UserError: as ``Shard.draw``; or the file of prompts was changed.
    """
    later = sum(sum(chunk.left) for chunk in chunks)
    for kind in (PLAIN, CONTROLLED):
        for place, chunk in enumerate(chunks):
            if not chunk.left[kind]:
                continue
            later -= chunk.left[kind]
            lines, bad = read_chunk(run, file, chunk)
            folder = OutputFolder(chunk.folder(run))
            if left_of(run, folder, lines, bad) == chunk.left:
                settled = folder.settled
                batches = ranks.shard(_batches_of(run, kind, lines, settled))
                to_tell = bad if kind == PLAIN and ranks.is_first else []
                unreadable = [vars(each) for each in to_tell if each.number not in folder.skipped]
                shard.bar.total = shard.bar.n + _num_left(batches, settled) + later // ranks.size
                if batches or unreadable:  # or rank 0 may have gathered, and a part that is made now would stay
                    with nullcontext(manifest) if chunk.number == 1 else _part(folder.path, ranks) as part:
                        part.add(*unreadable)
                        shard.draw(folder.path, part, batches, settled)
            drawn(place, kind)


def _batches_of(run: Run, kind: int, lines: Sequence[Line], settled: Container[int]) -> list[Batch]:
    batches = form_batches(
        lines, run.batch_size, all_controlled=run.all_controlled, all_negative=run.all_negative
    )
    return [
        batch for batch in batches
        if batch.kind.controlled == (kind == CONTROLLED) and _num_left([batch], settled)
    ]  # fmt: skip


def _num_left(batches: Sequence[Batch], settled: Container[int]) -> int:
    return sum(line.number not in settled for batch in batches for line in batch.lines)


def _part(folder: Path, ranks: Ranks) -> Writer:
    prepare_folder(folder, [], overwrite=True)
    return rank_manifest(folder, ranks.rank)

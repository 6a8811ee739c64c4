"""The sheet of ``visualize``."""

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from ppdiffusers_tome.settings.text import format_count
from ppdiffusers_tome.tools.figures.merging import draw_groups
from ppdiffusers_tome.tools.figures.sheet import Cell, Label, make_sheet
from ppdiffusers_tome.tools.generation.settings import format_run
from ppdiffusers_tome.tools.recorder import MergeRecord, MergingBlock


def make_groups_sheet(
    image: Image.Image, records: Mapping[MergingBlock, Sequence[MergeRecord]], num_calls: int, run: Mapping[str, Any],
    settings: str,
) -> Image.Image:  # fmt: skip
    """Lay out the groups of merged tokens over the image.

    Rows are the first, a middle and the last call of the denoiser, of which some schedulers make several a step. A
    column is a block, of which there is at least one record.
    """
    step = "step" if num_calls == run["steps"] else "call"
    rows = []
    for call in sorted({0, (num_calls - 1) // 2, num_calls - 1}):
        of_call = [next((record for record in every if record.call == call), None) for every in records.values()]
        timestep = next((record.timestep for record in of_call if record is not None), None)
        name = f"{step} {call + 1} of {num_calls}" + ("" if timestep is None else f", timestep {timestep:g}")
        rows.append((name, [Cell(image), *(_make_groups_cell(image, record) for record in of_call)]))
    explanation = (
        "outlined: tokens that merged, each group in its mean color and with an outline of its own color; no outline: "
        "tokens that did not merge"
    )
    title = Label(run["prompt"], (f"{format_run(run)}, seed {run['seed']}", explanation))
    columns = [Label("the image", (settings,))]
    columns += [Label(f"{block.denoiser}, level {block.level}", (block.path,)) for block in records]
    return make_sheet(title, columns, rows)


def _make_groups_cell(image: Image.Image, record: MergeRecord | None) -> Cell:
    if record is None:
        return Cell(image, "nothing merged")
    unmerged = int((record.sizes == 1).sum())
    groups = len(record.sizes) - unmerged
    caption = f"{format_count(groups, 'group')}, largest {record.sizes.max()}; {unmerged} not merged"
    return Cell(draw_groups(image, record), caption)

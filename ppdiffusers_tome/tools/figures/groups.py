"""Groups of merged tokens over their image, and the sheet of ``visualize``."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from ppdiffusers_tome.settings.text import format_count
from ppdiffusers_tome.tools.figures.sheet import Cell, Label, make_sheet
from ppdiffusers_tome.tools.generation.settings import format_run
from ppdiffusers_tome.tools.recorder import MergeRecord, RecordedBlock

_HUE_STEP = (5**0.5 - 1) / 2  # of the color wheel, from one group to the next; the golden ratio keeps neighbors apart


def make_groups_sheet(
    image: Image.Image, records: Sequence[MergeRecord], num_calls: int, made_with: Mapping[str, Any], settings: str
) -> Image.Image:
    """Lay out the groups of merged tokens over the image.

    Rows are the first, a middle and the last call of the denoiser, of which some schedulers make several a step.
    Columns are the first block of each level.
    """
    blocks: dict[tuple[str, int], RecordedBlock] = {}
    for record in records:
        blocks.setdefault((record.block.denoiser, record.block.level), record.block)
    step = "step" if num_calls == made_with["steps"] else "call"
    rows = []
    for call in sorted({0, (num_calls - 1) // 2, num_calls - 1}):
        of_call = {record.block: record for record in records if record.call == call}
        timestep = next((record.timestep for record in of_call.values()), None)
        name = f"{step} {call + 1} of {num_calls}" + ("" if timestep is None else f", timestep {timestep:g}")
        rows.append((name, [Cell(image), *(_make_groups_cell(image, of_call.get(block)) for block in blocks.values())]))
    explanation = (
        "outlined: tokens that merged, each group in its mean color and with an outline of its own color; no outline: "
        "tokens that did not merge"
    )
    title = Label(made_with["prompt"], (f"{format_run(made_with)}, seed {made_with['seed']}", explanation))
    labels = [Label(f"{block.denoiser}, level {block.level}", (block.path,)) for block in blocks.values()]
    return make_sheet(title, [Label("the image", (settings,)), *labels], rows)


def _make_groups_cell(image: Image.Image, record: MergeRecord | None) -> Cell:
    if record is None:
        return Cell(image, "nothing merged")
    unmerged = int((record.sizes == 1).sum())
    groups = len(record.sizes) - unmerged
    caption = f"{format_count(groups, 'group')}, largest {record.sizes.max()}; {unmerged} not merged"
    return Cell(draw_groups(image, record), caption)


def draw_groups(image: Image.Image, record: MergeRecord) -> Image.Image:
    """Draw the groups of merged tokens over their image.

    Every group has its mean color. A group of several tokens, which may lie anywhere, has an outline of its own color;
    tokens that did not merge have none.
    """
    from skimage.segmentation import find_boundaries

    grid = record.grid
    rows, columns = _find_tokens_of_pixels(image.height, grid.height), _find_tokens_of_pixels(image.width, grid.width)
    group_of_pixel = record.groups.reshape(grid.height, grid.width)[rows[:, None], columns]
    flat = group_of_pixel.ravel()
    num_groups = len(record.sizes)
    counts = np.maximum(np.bincount(flat, minlength=num_groups), 1)
    channels = np.asarray(image.convert("RGB")).reshape(-1, 3).T
    means = [np.bincount(flat, weights=channel, minlength=num_groups) / counts for channel in channels]
    pixels = np.stack(means, axis=-1)[group_of_pixel]
    outlines = find_boundaries(group_of_pixel) & (record.sizes > 1)[group_of_pixel]
    pixels[outlines] = _make_colors(num_groups)[group_of_pixel[outlines]]
    return Image.fromarray(np.rint(pixels).astype(np.uint8))


def _find_tokens_of_pixels(pixels: int, tokens: int) -> np.ndarray:
    """Find the token that each pixel of a line belongs to."""
    # A level halves the grid before it and rounds up, so a token mostly covers a power of two, and the last one less.
    for covered in (2**power for power in range(pixels.bit_length())):
        if -(-pixels // covered) == tokens:
            return np.arange(pixels) // covered
    return np.arange(pixels) * tokens // pixels


def _make_colors(count: int) -> np.ndarray:
    """Return vivid colors, ``[count, 3]``, each far from the previous one."""
    hues = np.arange(count) * _HUE_STEP % 1 * 255
    hsv = np.stack([hues, np.full(count, 220.0), np.full(count, 250.0)], axis=-1).astype(np.uint8)
    return np.asarray(Image.fromarray(hsv[None], "HSV").convert("RGB"))[0]

"""Which lines are drawn together. Knows no Paddle.

A picture's bits may depend on how many are computed with it, and with ``min_similarity`` they do on which. So batches
follow from the file alone: lines that can be drawn together, in their order, a fixed number at a time. Neither what is
finished nor the number of ranks has a say in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ppdiffusers_tome.tools.batch.line import Line


@dataclass(frozen=True)
class Kind:
    """What the lines of a batch have in common.

    Attributes:
        controlled: whether edges guide them.
        height, width, ratio: as in ``Line``.
        has_negative_prompt: whether any was given; some models take none for something else than an empty one.
    """

    controlled: bool
    height: int | None
    width: int | None
    ratio: float | None
    has_negative_prompt: bool


@dataclass(frozen=True)
class Batch:
    """Lines that are drawn together, in the order of the file."""

    kind: Kind
    lines: tuple[Line, ...]


def form_batches(
    lines: Sequence[Line], size: int, *, all_controlled: bool = False, all_negative: bool = False
) -> list[Batch]:
    """Put lines of a kind together.

    Args:
        lines: in the order of the file.
        size: the most lines in a batch, 1 or more.
        all_controlled: lines without edges of their own have those of the command line.
        all_negative: the same for negative prompts.

    Returns:
        Those that no edges guide first, as they need another pipeline; otherwise in the order of their first lines.
    """
    kinds: dict[Kind, list[Line]] = {}
    for line in lines:
        kind = Kind(
            all_controlled or line.control is not None, line.height, line.width, line.ratio,
            all_negative or line.negative_prompt is not None,
        )  # fmt: skip
        kinds.setdefault(kind, []).append(line)
    batches = [
        Batch(kind, tuple(alike[start : start + size]))
        for kind, alike in kinds.items() for start in range(0, len(alike), size)
    ]  # fmt: skip
    return sorted(batches, key=lambda batch: (batch.kind.controlled, batch.lines[0].number))

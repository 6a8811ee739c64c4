"""How ``visualize`` looks: the sheet of groups, the strip of ratios, the single pictures of both, and the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from ppdiffusers_tome.patching.recorder import MergeRecord, MergingBlock
from ppdiffusers_tome.tools.figures.merging import groups_picture, merged_share, share_picture
from ppdiffusers_tome.tools.figures.sheet import Cell, Label, make_sheet
from ppdiffusers_tome.tools.generation.results import GeneratedImage, format_run
from ppdiffusers_tome.tools.measure.similarity import similarity_to_dict
from ppdiffusers_tome.tools.measure.units import counted


@dataclass(frozen=True)
class MergedPicture:
    """A picture, and how its tokens merged.

    Attributes:
        picture: the one that was watched.
        records: of the blocks to show, each at least one.
        calls: how often the denoiser was called; some schedulers do more often than there are steps.
        shown: the calls to show, from 0.
    """

    picture: Image.Image
    records: Mapping[MergingBlock, Sequence[MergeRecord]]
    calls: int
    shown: Sequence[int]

    def sheet(self, run: Mapping[str, Any], settings: str) -> Image.Image:
        """Groups over the picture, one row per step, one column per block; in the last row how often each token merged.

        Args:
            run: what the pipeline says of itself and the picture.
            settings: those of token merging, for people.
        """
        step = "step" if self.calls == run["steps"] else "call"
        plain = Cell(self.picture)
        rows = []
        for call in self.shown:
            records = [next((record for record in own if record.call == call), None) for own in self.records.values()]
            timestep = next((record.timestep for record in records if record is not None), None)
            name = f"{step} {call + 1} of {self.calls}" + ("" if timestep is None else f", timestep {timestep:g}")
            rows.append((name, [plain, *map(self._groups, records)]))
        calls = f"all {self.calls} {step}s" if self.calls > 1 else f"the only {step}"
        name = f"{calls}: the redder, the more often a token merged"
        rows.append((name, [plain, *map(self._share, self.records.values())]))
        explained = (
            "outlined: tokens that merged, each group in its mean colour and with an outline of its own colour; no "
            "outline: tokens that did not merge"
        )
        title = Label(run["prompt"], (_described(run), explained))
        method = f"method {run['tome']['method']}"  # settings name it where it is not the default
        columns = [Label("the picture", (settings,) if method in settings else (settings, method))]
        columns += [Label(f"{block.denoiser}, level {block.level}", (block.path,)) for block in self.records]
        return make_sheet(title, columns, rows)

    def single_pictures(self) -> Iterator[tuple[str, int, Image.Image]]:
        """The pictures of the sheet with a tag and a step, the number of the call from 1."""
        for block, own in self.records.items():
            name = f"{block.denoiser} level {block.level} {block.path}"
            for record in own:
                if record.call in self.shown:
                    yield f"groups/{name}", record.call + 1, groups_picture(self.picture, record)
            yield f"share of the calls/{name}", self.calls, self._share(own).picture

    def _groups(self, record: MergeRecord | None) -> Cell:
        if record is None:
            return Cell(self.picture, "ran unmerged")
        alone = int((record.sizes == 1).sum())
        groups = len(record.sizes) - alone
        caption = f"{counted(groups, 'group')}, largest {record.sizes.max()}; {alone} not merged"
        return Cell(groups_picture(self.picture, record), caption)

    def _share(self, records: Sequence[MergeRecord]) -> Cell:
        share = merged_share(records, self.calls)
        caption = f"{share.mean():.0%} of the tokens on average"
        return Cell(share_picture(self.picture, records[0].grid, share), caption)


def first_of_levels(blocks: Iterable[MergingBlock]) -> list[MergingBlock]:
    """The first block of each denoiser and level, which stand for the others where not all can be shown."""
    first: dict[tuple[str, int], MergingBlock] = {}
    for block in blocks:
        first.setdefault((block.denoiser, block.level), block)
    return list(first.values())


def spread_calls(calls: int, most: int) -> list[int]:
    """So many of the calls of the denoiser at most, from 0, evenly: the first and the last, and others between."""
    return sorted({round(place * (calls - 1) / max(1, most - 1)) for place in range(most)})


def ratios_sheet(run: Mapping[str, Any], by_ratio: Mapping[float, GeneratedImage]) -> Image.Image:
    """One row: the picture at every ratio, with its similarity to the unmerged one, which comes first."""
    columns = [Label(f"ratio {ratio:g}" if ratio else "unmerged") for ratio in by_ratio]
    cells = [Cell(drawn.image, str(drawn.similarity or "")) for drawn in by_ratio.values()]
    return make_sheet(Label("Token merging by ratio", (_described(run),)), columns, [(run["prompt"], cells)])


def numbers(records: Sequence[MergeRecord], by_ratio: Mapping[float, GeneratedImage]) -> dict[str, Any]:
    """Every record and every ratio as plain values."""
    return {
        "merged": [
            {
                "denoiser": record.block.denoiser,
                "block": record.block.path,
                "level": record.block.level,
                "grid": [record.grid.height, record.grid.width],
                "call": record.call + 1,
                "timestep": record.timestep,
                "tokens": len(record.groups),
                "merged_away": record.num_merged,
                "unmerged": int((record.sizes == 1).sum()),
                "largest_group": int(record.sizes.max()),
            }
            for record in records
        ],
        "ratios": [{"ratio": ratio, **similarity_to_dict(drawn.similarity)} for ratio, drawn in by_ratio.items()],
    }


def _described(run: Mapping[str, Any]) -> str:
    return f"{format_run(run)}, seed {run['seed']}"

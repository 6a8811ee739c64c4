"""The file of an evaluation, one line of JSON a finished picture, so that a stopped one goes on from there."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.drawing.picture_files import slug
from ppdiffusers_tome.tools.evaluation.configurations import UNMERGED, Configuration
from ppdiffusers_tome.tools.measuring.json_lines import part_of
from ppdiffusers_tome.tools.measuring.ledger import Ledger


@dataclass(frozen=True)
class Turn:
    """A prompt and a seed, which every configuration draws in its turn."""

    prompt: str
    seed: int

    @property
    def file_name(self) -> str:
        """The same whatever else is drawn; prompts that begin alike differ in their checksum."""
        return f"{slug(self.prompt)}-{zlib.crc32(self.prompt.encode()):08x}-seed-{self.seed}.png"


@dataclass(frozen=True)
class Result:
    """What one picture took and how it turned out.

    Attributes:
        configuration: its name.
        prompt, seed: of the picture.
        sitting: which run of the program drew it, from 1. Seconds are compared within one sitting.
        seconds, block_seconds, denoising_peak_bytes, peak_bytes: as in ``measuring.Measurement``.
        psnr, ssim: against the unmerged picture; None for that picture itself.
        obeys: whether it shows what was asked; None where nobody can tell.
    """

    configuration: str
    prompt: str
    seed: int
    sitting: int
    seconds: float
    block_seconds: Mapping[int, float]
    denoising_peak_bytes: int | None
    peak_bytes: int | None
    psnr: float | None
    ssim: float | None
    obeys: bool | None

    @property
    def turn(self) -> Turn:
        return Turn(self.prompt, self.seed)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: an infinite PSNR, of identical pictures, is null beside an SSIM of 1."""
        values = asdict(self)
        values["block_seconds"] = {str(level): seconds for level, seconds in self.block_seconds.items()}
        values["psnr"] = None if self.psnr == math.inf else self.psnr
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """What ``to_dict`` described."""
        given = dict(values)
        given["block_seconds"] = {int(level): seconds for level, seconds in given["block_seconds"].items()}
        if given["psnr"] is None and given["ssim"] is not None:
            given["psnr"] = math.inf
        return cls(**given)


class EvaluationLedger(Ledger):
    """Results of an evaluation.

    Args:
        path, identity, overwrite: as in ``Ledger``.
        rank: of all that write at once; 0 writes the file itself, the others a part of it each.

    Raises:
        UserError: the file holds something else, or another run writes it.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], *, overwrite: bool = False, rank: int = 0) -> None:
        super().__init__(path, identity, overwrite=overwrite, part=part_of(path, rank) if rank else None)
        self._read_results()

    def gather(self) -> None:
        """As ``Ledger`` says."""
        super().gather()
        self._read_results()

    @property
    def next_sitting(self) -> int:
        return 1 + max((result.sitting for result in self._results), default=0)

    def note_configurations(self, configurations: Iterable[Configuration]) -> None:
        """Write down what each name stands for.

        Raises:
            UserError: one of them stood for something else when the file was begun.
        """
        known = {line["configuration"]["name"]: line["configuration"] for line in self.lines if "configuration" in line}
        described = [configuration.to_dict() for configuration in configurations]
        for now in described:
            then = known.get(now["name"], now)
            if then != now:
                changed = ", ".join(
                    f"{name}={_plain(then).get(name)!r} then and {value!r} now"
                    for name, value in _plain(now).items() if name != "tome" and value != _plain(then).get(name)
                )  # fmt: skip
                raise UserError(
                    f"{self.path} has another configuration called {now['name']!r} ({changed}); give it another name, "
                    "another --output, or --overwrite to begin anew"
                )
        for now in described:
            if now["name"] not in known:
                self.add({"configuration": now})

    def add_result(self, result: Result) -> None:
        self.add({"picture": result.to_dict()})
        self._take(result)

    def results(self, configuration: str) -> dict[Turn, Result]:
        """A configuration's pictures; of one that was drawn more than once the last.

        One whose unmerged picture of the same sitting was lost is as good as lost: there is nothing to compare its
        seconds with.
        """
        return {
            result.turn: result for result in self._results
            if result.configuration == configuration and (result.turn, result.sitting) in self._unmerged
        }  # fmt: skip

    def of_sitting(self, configuration: str) -> dict[tuple[Turn, int], Result]:
        """A configuration's pictures by turn and sitting."""
        return {
            (result.turn, result.sitting): result for result in self._results if result.configuration == configuration
        }

    def _read_results(self) -> None:
        self._results: list[Result] = []
        self._unmerged: set[tuple[Turn, int]] = set()
        for line in self.lines:
            if "picture" in line:
                try:
                    self._take(Result.from_dict(line["picture"]))
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    self.close()
                    raise UserError(
                        f"{self.path} holds a picture that this version did not write ({error!r}); give another "
                        "--output, or --overwrite to begin anew"
                    ) from error

    def _take(self, result: Result) -> None:
        self._results.append(result)
        if result.configuration == UNMERGED:
            self._unmerged.add((result.turn, result.sitting))


def _plain(described: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with its settings beside its name."""
    return {**described, **(described["tome"] or {})}

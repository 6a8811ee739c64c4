"""The file of an evaluation, one line of JSON a finished picture, from which a stopped one resumes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED, Configuration
from ppdiffusers_tome.tools.evaluate.samples import Case, Sample
from ppdiffusers_tome.tools.measure.json_lines import part_of
from ppdiffusers_tome.tools.measure.lines_ledger import Ledger


class EvaluationLedger(Ledger):
    """Samples of an evaluation.

    Args:
        path, identity, overwrite: as in ``Ledger``.
        rank: of all that write at once; 0 writes the file itself, the others a part of it each.

    Raises:
        UserError: the file holds something else, or another run writes it.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], *, overwrite: bool = False, rank: int = 0) -> None:
        super().__init__(path, identity, overwrite=overwrite, part=part_of(path, rank) if rank else None)
        self._read_samples()

    def gather(self) -> None:
        """As ``Ledger`` says."""
        super().gather()
        self._read_samples()

    @property
    def next_run(self) -> int:
        return 1 + max((sample.run for sample in self._samples), default=0)

    @property
    def unmerged(self) -> list[Sample]:
        """The unmerged pictures of all runs."""
        return [sample for sample in self._samples if sample.configuration == UNMERGED]

    def samples(self, configuration: str) -> dict[Case, Sample]:
        """A configuration's samples; of a case that was drawn more than once the last.

        One whose unmerged picture of the same run was lost is as good as lost: there is nothing to compare its seconds
        with.
        """
        known = {(sample.case, sample.run) for sample in self.unmerged}
        return {
            sample.case: sample for sample in self._samples
            if sample.configuration == configuration and (sample.case, sample.run) in known
        }  # fmt: skip

    def add_sample(self, sample: Sample) -> None:
        self.add({"picture": sample.to_dict()})
        self._samples.append(sample.without_picture())

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
                settings = {**then, **(then["tome"] or {})}
                changed = ", ".join(
                    f"{name}={settings.get(name)!r} then and {value!r} now"
                    for name, value in {**now, **(now["tome"] or {})}.items()
                    if name != "tome" and value != settings.get(name)
                )
                raise UserError(
                    f"{self.path} has another configuration called {now['name']!r} ({changed}); give it another name, "
                    "another --output, or --overwrite to start over"
                )
        for now in described:
            if now["name"] not in known:
                self.add({"configuration": now})

    def _read_samples(self) -> None:
        try:
            self._samples = [Sample.from_dict(line["picture"]) for line in self.lines if "picture" in line]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self.close()
            raise UserError(
                f"{self.path} holds a picture that this version did not write; give another --output, or "
                "--overwrite to start over"
            ) from error

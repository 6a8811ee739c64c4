"""The ledger of a benchmark: seconds by round, peaks, and what did not fit into memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ppdiffusers_tome.tools.bench.plan import Plan, Setting, Variant
from ppdiffusers_tome.tools.measure.lines_ledger import Ledger

TIME, MEMORY = "time", "memory"


class BenchLedger(Ledger):
    """Results of a benchmark.

    Args:
        path, overwrite: as in ``Ledger``.
        plan: what is to be measured.

    Raises:
        UserError: the file holds something else.
    """

    def __init__(self, path: Path, plan: Plan, *, overwrite: bool = False) -> None:
        super().__init__(path, plan.identity, overwrite=overwrite)

    def add_round(self, setting: Setting, number: int, seconds: Mapping[str, float]) -> None:
        """Seconds by variant of one round."""
        self.add({"setting": asdict(setting), "round": number, "seconds": dict(seconds)})

    def add_peak(self, setting: Setting, variant: Variant, peaks: Mapping[str, int | None]) -> None:
        """``peak_bytes`` and ``resident_peak_bytes`` of one variant."""
        self.add({"setting": asdict(setting), "variant": variant.name, **peaks})

    def add_out_of_memory(self, setting: Setting, variant: Variant, during: str) -> None:
        """A variant did not fit, when its ``time`` or its ``memory`` was measured."""
        self.add({"setting": asdict(setting), "variant": variant.name, "out_of_memory": during})

    def rounds(self, setting: Setting) -> dict[int, dict[str, float]]:
        """Seconds by variant, by the number of the round."""
        return {line["round"]: line["seconds"] for line in self._about(setting) if "round" in line}

    def out_of_memory(self, setting: Setting, variant: Variant, during: str) -> bool:
        return any(line.get("out_of_memory") == during for line in self._about(setting, variant))

    def peaks(self, setting: Setting, variant: Variant) -> dict[str, int | None] | None:
        """``peak_bytes`` and ``resident_peak_bytes``; None before they are measured."""
        found = [line for line in self._about(setting, variant) if "peak_bytes" in line]
        return {name: found[-1][name] for name in ("peak_bytes", "resident_peak_bytes")} if found else None

    def _about(self, setting: Setting, variant: Variant | None = None) -> list[dict[str, Any]]:
        lines = [line for line in self.lines if line.get("setting") == asdict(setting)]
        return lines if variant is None else [line for line in lines if line.get("variant") == variant.name]

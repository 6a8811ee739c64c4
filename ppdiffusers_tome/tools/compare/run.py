"""The run of ``compare``, which resumes when stopped."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ppdiffusers_tome.settings.text import format_count
from ppdiffusers_tome.tools.compare.configurations import REFERENCE, Configuration
from ppdiffusers_tome.tools.compare.report import Report, Row
from ppdiffusers_tome.tools.compare.samples import RESULTS, Case, Sample
from ppdiffusers_tome.tools.console.output import choose_bar, print_line
from ppdiffusers_tome.tools.files import prepare_folder
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from ppdiffusers_tome.tools.generation.sampling import check_scheduler
from ppdiffusers_tome.tools.images import read_image, write_image
from ppdiffusers_tome.tools.measure.ledger import Ledger
from ppdiffusers_tome.tools.measure.meter import explain_peak
from ppdiffusers_tome.tools.measure.similarity import compare_images
from ppdiffusers_tome.tools.measure.system import describe_machine
from ppdiffusers_tome.tools.measure.units import NOT_MEASURED


@dataclass
class Comparison:
    """Configurations that generate the same cases, one after the other.

    The images of a case follow each other, the unmerged one first, so that whatever slows the machine slows all
    configurations.
    """

    loaded: LoadedPipeline
    configurations: Sequence[Configuration]  # the unmerged pipeline first
    folder: Path  # of the results
    _warmed_up: set[str] = field(default_factory=set)

    def run(self, cases: Sequence[Case], *, overwrite: bool) -> Report:
        """Measure the cases that earlier results lack; report on all."""
        for each in self.configurations:
            if each.steps is not None:
                check_scheduler(self.loaded.pipe.scheduler, each.steps)
        run = self.loaded.used_settings.describe()
        is_compiled = self.loaded.settings.compile is not None
        machine = {**describe_machine(), "memory": NOT_MEASURED if is_compiled else explain_peak()}
        configurations = {each.name: each.to_dict() for each in self.configurations}
        identity = {**run, **machine, "configurations": configurations}
        ledger = Ledger(self.folder / "compare.jsonl", identity, overwrite=overwrite)
        self._measure_missing(cases, ledger)
        rows = [Row(each, [Sample(**ledger[case][each.name]) for case in cases]) for each in self.configurations]
        run["prompts"] = list(dict.fromkeys(case.prompt for case in cases))
        run["seeds"] = list(dict.fromkeys(case.seed for case in cases))
        return Report(run, machine, rows)

    def _measure_missing(self, cases: Sequence[Case], ledger: Ledger) -> None:
        from tqdm import tqdm

        kept = {case: self._find_kept(case, ledger) for case in cases}
        missing = [(case, each) for case in cases for each in self.configurations if each.name not in kept[case]]
        total = len(cases) * len(self.configurations)
        if len(missing) < total:
            count = format_count(total - len(missing), "image")
            print_line(f"kept: {count} of {self.folder}; --overwrite generates all again")
        if missing:
            for name in RESULTS:  # of other images
                (self.folder / name).unlink(missing_ok=True)
        try:
            for case, each in tqdm(missing, desc="images", **choose_bar()):
                kept[case][each.name] = sample = self._measure(each, case, kept[case].get(REFERENCE.name))
                ledger.add(case, kept[case])
                tqdm.write(f"{case.prompt}, {each.name}: {sample['seconds']:.2f} s", file=sys.stderr)
        except KeyboardInterrupt:
            count = format_count(sum(map(len, kept.values())), "image")
            print_line(f"kept: {count} of {total} in {self.folder}; the same command goes on")
            raise

    def _find_kept(self, case: Case, ledger: Ledger) -> dict[str, Any]:
        """Find the results of a case whose images are there; forget others."""
        found = dict(ledger[case]) if case in ledger else {}
        kept = {name: found[name] for name in found if case.locate(self.folder, name).is_file()}
        if REFERENCE.name not in kept:  # with which the others were compared
            kept = {}
        if kept != found:
            ledger.add(case, kept)
        return kept

    def _measure(self, configuration: Configuration, case: Case, unmerged: Mapping[str, Any] | None) -> dict[str, Any]:
        """Generate, keep and measure an image, beside the unmerged one."""
        # The first image of a configuration is slower. Of programs only some are kept in memory, so one may be gone.
        if configuration.name not in self._warmed_up or self.loaded.settings.compile is not None:
            self.loaded.warm_up(configuration.tome, *case)
            self._warmed_up.add(configuration.name)
        configuration.apply(self.loaded)
        generated = self.loaded.generate(*case, steps=configuration.steps)
        path = case.locate(self.folder, configuration.name)
        prepare_folder(path.parent, [path.name], overwrite=True)
        write_image(path, generated.image, {"configuration": configuration.name, **case._asdict()})
        unmerged_seconds, psnr, ssim = generated.seconds, None, None
        if unmerged is not None:
            unmerged_seconds = unmerged["seconds"]
            psnr, ssim = compare_images(read_image(case.locate(self.folder, REFERENCE.name)), generated.image)
        return asdict(Sample(
            **case._asdict(), seconds=generated.seconds, unmerged_seconds=unmerged_seconds, psnr_db=psnr, ssim=ssim,
            denoising_peak_bytes=generated.denoising_peak_bytes, peak_bytes=generated.peak_bytes,
            is_disturbed=generated.is_disturbed,
        ))  # fmt: skip

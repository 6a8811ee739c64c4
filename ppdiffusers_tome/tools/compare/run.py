"""The run of ``compare``, which resumes when stopped."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ppdiffusers_tome.tools.compare.configurations import Configuration
from ppdiffusers_tome.tools.compare.report import Report, Row
from ppdiffusers_tome.tools.compare.samples import Case, Sample
from ppdiffusers_tome.tools.console.output import choose_bar, print_line
from ppdiffusers_tome.tools.files import prepare_folder
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from ppdiffusers_tome.tools.generation.schedulers import check_scheduler
from ppdiffusers_tome.tools.images import write_image
from ppdiffusers_tome.tools.measure.ledger import Ledger
from ppdiffusers_tome.tools.measure.meter import explain_peak
from ppdiffusers_tome.tools.measure.similarity import compare_images
from ppdiffusers_tome.tools.measure.system import describe_load, describe_machine
from ppdiffusers_tome.tools.measure.units import format_count

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.tools.generation.results import GeneratedImage


@dataclass
class Comparison:
    """Configurations that generate the same cases, one after the other.

    The images of a case follow each other, the unmerged one first, so that whatever slows the machine slows all
    configurations.
    """

    loaded: LoadedPipeline
    configurations: Sequence[Configuration]  # the unmerged pipeline first
    folder: Path  # of the results
    edges: Image.Image | None = None
    _warmed_up: set[str] = field(default_factory=set)

    def run(self, cases: Sequence[Case], *, overwrite: bool) -> Report:
        """Measure the cases that earlier results lack; report on all.

        Raises:
            UserError: the results belong to another run, or the scheduler cannot run as few steps as a configuration.
            NothingToMergeError: nothing merges in the pipeline with a configuration.
        """
        for each in self.configurations:
            if each.steps is not None:
                check_scheduler(self.loaded.pipe.scheduler, each.steps)
        run = self.loaded.describe_run()
        del run["versions"]  # those of the machine
        machine = {**describe_machine(), "memory": explain_peak()}
        configurations = {each.name: each.to_dict() for each in self.configurations}
        identity = {**run, **machine, "configurations": configurations}
        ledger, busy = Ledger(self.folder / "compare.jsonl", identity, overwrite=overwrite), describe_load()
        self._measure_missing(cases, ledger)
        rows = [Row(each, [Sample(**ledger[case][each.name]) for case in cases]) for each in self.configurations]
        run["prompts"] = list(dict.fromkeys(case.prompt for case in cases))
        run["seeds"] = list(dict.fromkeys(case.seed for case in cases))
        return Report(run, machine, rows, busy)

    def _measure_missing(self, cases: Sequence[Case], ledger: Ledger) -> None:
        from tqdm import tqdm

        missing = [case for case in cases if case not in ledger]
        if reused := len(cases) - len(missing):
            images = format_count(reused * len(self.configurations), "image")
            print_line(f"kept: {images} of {self.folder}; --overwrite generates all again")
        with tqdm(total=len(self.configurations) * len(missing), desc="images", **choose_bar()) as bar:
            for case in missing:
                samples = {}
                for name, sample in self._measure_case(case):
                    samples[name] = asdict(sample)
                    tqdm.write(f"{case.prompt}, {name}: {sample.seconds:.2f} s", file=sys.stderr)
                    bar.update()
                ledger.add(case, samples)

    def _measure_case(self, case: Case) -> Iterator[tuple[str, Sample]]:
        """Generate, keep and measure the images of a case."""
        unmerged: GeneratedImage | None = None
        for each in self.configurations:
            generated = self._generate(each, case)
            similarity = None if unmerged is None else compare_images(unmerged.image, generated.image)
            unmerged = unmerged or generated
            path = case.locate(self.folder, each.name)
            prepare_folder(path.parent, [path.name], overwrite=True)
            settings = {"configuration": each.name, "prompt": case.prompt, "seed": case.seed}
            write_image(path, generated.image, settings)
            yield each.name, Sample(
                case.prompt, case.seed, generated.seconds, unmerged.seconds, generated.denoising_peak_bytes,
                generated.peak_bytes, *(similarity or ()),
            )  # fmt: skip

    def _generate(self, configuration: Configuration, case: Case) -> GeneratedImage:
        image = case.prompt, case.seed - self.loaded.settings.seed, self.edges
        # The first image of a configuration is slower. Of programs only some are kept in memory, so one may be gone.
        if configuration.name not in self._warmed_up or self.loaded.settings.compile is not None:
            self.loaded.warm_up(configuration.tome, *image)
            self._warmed_up.add(configuration.name)
        configuration.apply(self.loaded)
        return self.loaded.generate(*image, steps=configuration.steps)

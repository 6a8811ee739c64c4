"""The run of ``evaluate`` and ``compare``, which resumes when stopped."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED, Configuration, make_unmerged
from ppdiffusers_tome.tools.evaluate.report import Report, Row
from ppdiffusers_tome.tools.evaluate.samples import Case, ImageFolder, Sample
from ppdiffusers_tome.tools.generation.schedulers import check_scheduler
from ppdiffusers_tome.tools.generation.settings import make_warm_up_config
from ppdiffusers_tome.tools.measure.ledger import Ledger
from ppdiffusers_tome.tools.measure.meter import explain_peak
from ppdiffusers_tome.tools.measure.similarity import similarity_to_dict
from ppdiffusers_tome.tools.measure.system import describe_load, describe_machine

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
    from ppdiffusers_tome.tools.generation.results import GeneratedImage

IMAGES_PER_REFERENCE = 8  # whose seconds are compared with those of one unmerged image


@dataclass
class Evaluation:
    """An evaluation of configurations.

    The images of a case follow each other, so that whatever slows the machine slows all configurations. A case begins
    with its unmerged image, which is generated again after ``IMAGES_PER_REFERENCE`` images: seconds are compared with
    those of the same minutes. Similarity is always to the first unmerged image.
    """

    loaded: LoadedPipeline
    configurations: Sequence[Configuration]  # the unmerged pipeline first
    images: ImageFolder
    edges: Image.Image | None = None
    _warmed_up: set[str] = field(default_factory=set)

    def run(self, title: str, cases: Sequence[Case], ledger_path: Path, *, overwrite: bool) -> Report:
        """Measure the cases that the ledger lacks; report on all.

        Raises:
            UserError: the ledger belongs to another run, or the scheduler cannot run as few steps as a configuration.
            NothingToMergeError: nothing merges in the pipeline with a configuration.
        """
        for each in self.configurations:
            if each.steps is not None:
                check_scheduler(self.loaded.pipe.scheduler, each.steps, may_scale=True)
        run = {**self.loaded.describe_run(), "negative_prompt": self.loaded.settings.negative_prompt}
        del run["versions"]  # those of the machine
        machine = {**describe_machine(), "memory": explain_peak()}
        if self.edges is not None:  # another image may have taken the place of a file
            run["controlnet"]["edge_checksum"] = zlib.crc32(self.edges.tobytes())
        configurations = [each.to_dict() for each in self.configurations]
        # Finished cases are not generated again, so an image that was not kept would be missing.
        identity = {**run, **machine, "configurations": configurations, "keeps_all": self.images.keeps_all}
        ledger, busy = Ledger(ledger_path, identity, overwrite=overwrite), describe_load()
        self._measure_missing(cases, ledger)
        families = list(dict.fromkeys(each.family for each in self.configurations))
        rows = [
            Row(each, [Sample(**ledger[case.key][each.name]) for case in cases])
            for each in sorted(self.configurations, key=lambda each: families.index(each.family))
        ]
        run["prompts"] = list(dict.fromkeys(case.prompt for case in cases))
        run["seeds"] = list(dict.fromkeys(case.seed for case in cases))
        return Report(title, run, machine, rows, busy)

    def _measure_missing(self, cases: Sequence[Case], ledger: Ledger) -> None:
        from tqdm import tqdm

        total = len(self.configurations) * sum(case.key not in ledger for case in cases)
        with tqdm(total=total, desc="images", position=0, disable=None) as bar:
            done = 0
            for number, case in enumerate(cases):
                if case.key in ledger:
                    continue
                samples = {}
                for name, sample in self._measure_case(number, case):
                    samples[name] = asdict(sample)
                    bar.update()
                    done += 1
                    if bar.disable:  # without a terminal
                        line = f"image {done} of {total}: {case.prompt}, {name}, {sample.seconds:.1f} s"
                        print(line, file=sys.stderr, flush=True)
                ledger.add(case.key, samples)

    def _measure_case(self, number: int, case: Case) -> Iterator[tuple[str, Sample]]:
        """Generate the images of a case; each case begins with another configuration."""
        first: Image.Image | None = None
        merged = self.configurations[1:]
        turn = number % len(merged)
        merged = [*merged[turn:], *merged[:turn]]
        for start in range(0, len(merged), IMAGES_PER_REFERENCE):
            reference = self._measure(make_unmerged(), case)
            if first is None:
                first = reference.image
                self.images.write(UNMERGED, case, first)
                yield UNMERGED, _make_sample(case, reference, reference)
            for configuration in merged[start : start + IMAGES_PER_REFERENCE]:
                generated = self._measure(configuration, case).compare_with(first)
                self.images.write(configuration.name, case, generated.image)
                yield configuration.name, _make_sample(case, generated, reference)

    def _measure(self, configuration: Configuration, case: Case) -> GeneratedImage:
        from ppdiffusers_tome.api import remove_tome

        try:
            if configuration.name not in self._warmed_up:  # the first image of a configuration is slower
                replace(configuration, tome=make_warm_up_config(configuration.tome)).apply(self.loaded.pipe)
                self._generate(case, self.loaded.warm_up_steps)
                self._warmed_up.add(configuration.name)
            configuration.apply(self.loaded.pipe)
            return self._generate(case, configuration.steps)
        finally:
            remove_tome(self.loaded.pipe)

    def _generate(self, case: Case, steps: int | None) -> GeneratedImage:
        number = case.seed - self.loaded.settings.seed
        return self.loaded.generate(case.prompt, number, self.edges, steps=steps)


def _make_sample(case: Case, generated: GeneratedImage, reference: GeneratedImage) -> Sample:
    return Sample(
        case.prompt, case.seed, generated.seconds, reference.seconds, generated.denoising_peak_bytes,
        generated.peak_bytes, **similarity_to_dict(generated.similarity),
    )  # fmt: skip

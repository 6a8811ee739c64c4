"""The run of ``evaluate`` and ``compare``, which resumes when stopped."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED, Configuration, make_unmerged
from ppdiffusers_tome.tools.evaluate.report import Report, Row
from ppdiffusers_tome.tools.evaluate.samples import Case, ImageFolder, Sample
from ppdiffusers_tome.tools.generation.schedulers import check_scheduler
from ppdiffusers_tome.tools.generation.settings import make_warm_up_config
from ppdiffusers_tome.tools.measure.ledger import Ledger
from ppdiffusers_tome.tools.measure.similarity import similarity_to_dict
from ppdiffusers_tome.tools.measure.system import describe_load, describe_machine
from ppdiffusers_tome.tuning.measurement import explain_peak

if TYPE_CHECKING:
    from PIL import Image

    from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
    from ppdiffusers_tome.tools.generation.results import GeneratedImage

IMAGES_PER_REFERENCE = 8  # whose seconds are compared with those of one unmerged image


@dataclass
class Evaluation:
    """An evaluation of configurations.

    The images of a case follow each other, so that whatever slows the machine slows all configurations. A case begins
    with its unmerged image, which is generated again after ``IMAGES_PER_REFERENCE`` images and when a run resumes:
    seconds are compared with those of the same minutes. Similarity is always to the first unmerged image.
    """

    loaded: LoadedPipeline
    configurations: Sequence[Configuration]  # the unmerged pipeline first
    images: ImageFolder
    edges: Image.Image | None = None
    _warmed_up: set[str] = field(default_factory=set)

    def run(self, title: str, cases: Sequence[Case], ledger_path: Path, *, overwrite: bool) -> Report:
        """Measure the images that ledger or folder lack; report on all.

        Raises:
            UserError: the ledger belongs to another run, or cannot be written; or the scheduler cannot run so few steps
                as a configuration has.
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
        ledger, busy = Ledger(ledger_path, {**run, **machine}, overwrite=overwrite), describe_load()
        self._generate_missing(cases, ledger)
        families = list(dict.fromkeys(each.family for each in self.configurations))
        try:
            rows = [
                Row(each, [Sample(**ledger[case.key(each.name)]) for case in cases])
                for each in sorted(self.configurations, key=lambda each: families.index(each.family))
            ]
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{ledger_path} holds results that this version did not write; give another --output, or --overwrite "
                "to start over"
            ) from error
        run["prompts"] = list(dict.fromkeys(case.prompt for case in cases))
        run["seeds"] = list(dict.fromkeys(case.seed for case in cases))
        return Report(title, run, machine, rows, busy)

    def _generate_missing(self, cases: Sequence[Case], ledger: Ledger) -> None:
        from tqdm import tqdm

        for each in self.configurations:
            key, settings = ["configuration", each.name], each.to_dict()
            if ledger.get(key, settings) != settings:
                raise UserError(
                    f"{ledger.path} has another configuration called {each.name!r}; give it another name, another "
                    "--output, or --overwrite to start over"
                )
            if key not in ledger:
                ledger.add(key, settings)
        missing = {
            case: [each for each in self.configurations
                   if (key := case.key(each.name)) not in ledger or not self.images.has(key)] for case in cases
        }  # fmt: skip
        total, done = sum(map(len, missing.values())), 0
        with tqdm(total=total, desc="images", position=0, disable=None) as bar:
            for number, case in enumerate(cases):
                for name, sample in self._run_case(number, case, missing[case]) if missing[case] else ():
                    ledger.add(case.key(name), asdict(sample))
                    bar.update()
                    done += 1
                    if bar.disable:  # without a terminal
                        line = f"image {done} of {total}: {case.prompt}, {name}, {sample.seconds:.1f} s"
                        print(line, file=sys.stderr, flush=True)

    def _run_case(self, number: int, case: Case, missing: list[Configuration]) -> Iterator[tuple[str, Sample]]:
        """Generate missing images of a case; each case begins with another configuration."""
        wanted = [each for each in missing if each.name != UNMERGED]
        turn = number % len(wanted) if wanted else 0
        wanted = wanted[turn:] + wanted[:turn]
        for start in range(0, max(1, len(wanted)), IMAGES_PER_REFERENCE):
            reference = self._measure(make_unmerged(), case, None)
            if start == 0 and len(wanted) < len(missing):
                self.images.write(UNMERGED, case, reference.image)
                yield UNMERGED, _make_sample(case, reference, reference)
            first = self.images.open(UNMERGED, case)
            for configuration in wanted[start : start + IMAGES_PER_REFERENCE]:
                generated = self._measure(configuration, case, first)
                self.images.write(configuration.name, case, generated.image)
                yield configuration.name, _make_sample(case, generated, reference)

    def _measure(self, configuration: Configuration, case: Case, reference: Image.Image | None) -> GeneratedImage:
        """Measure an image, and its similarity to the unmerged one."""
        from ppdiffusers_tome.api import remove_tome

        try:
            if configuration.name not in self._warmed_up:  # the first image of a configuration is slower
                replace(configuration, tome=make_warm_up_config(configuration.tome)).apply(self.loaded.pipe)
                self._generate(case, self.loaded.warm_up_steps)
                self._warmed_up.add(configuration.name)
            configuration.apply(self.loaded.pipe)
            generated = self._generate(case, configuration.steps)
        finally:
            remove_tome(self.loaded.pipe)
        return generated if reference is None else generated.compare_with(reference)

    def _generate(self, case: Case, steps: int | None) -> GeneratedImage:
        number = case.seed - self.loaded.settings.seed
        return self.loaded.generate(case.prompt, number, self.edges, steps=steps)


def _make_sample(case: Case, generated: GeneratedImage, reference: GeneratedImage) -> Sample:
    return Sample(
        case.prompt, case.seed, generated.seconds, reference.seconds, generated.denoising_peak_bytes,
        generated.peak_bytes, **similarity_to_dict(generated.similarity),
    )  # fmt: skip

"""The run of ``evaluate`` and ``compare``: configurations take turns, and a stopped run resumes."""

from __future__ import annotations

import gc
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED, Configuration, unmerged
from ppdiffusers_tome.tools.evaluate.report import Report, Row
from ppdiffusers_tome.tools.evaluate.samples import Case, ImageFolder, Sample
from ppdiffusers_tome.tools.generation.settings import make_warm_up_config
from ppdiffusers_tome.tools.measure.ledger import Ledger, run_jobs
from ppdiffusers_tome.tools.measure.memory import explain_peak
from ppdiffusers_tome.tools.measure.similarity import similarity_to_dict
from ppdiffusers_tome.tools.measure.system import describe_machine
from ppdiffusers_tome.tools.measure.timing import rotate
from ppdiffusers_tome.tuning.measurement import DeviceClock

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

    Attributes:
        loaded: generates the images.
        configurations: the unmerged pipeline first.
        images: keeps the images.
        times_blocks: whether the seconds inside the blocks that merge are measured too.
        edges: for a ControlNet.
    """

    loaded: LoadedPipeline
    configurations: Sequence[Configuration]
    images: ImageFolder
    times_blocks: bool
    edges: Image.Image | None = None
    _warmed_up: set[str] = field(default_factory=set)

    def run(self, title: str, cases: Sequence[Case], ledger_path: Path, *, overwrite: bool) -> Report:
        """Measure the images that ledger or folder lack; report on all.

        Args:
            title: of the report.
            cases: every configuration generates them.
            ledger_path: the file of the results.
            overwrite: start over.

        Raises:
            UserError: the ledger belongs to another run, or cannot be written.
            NothingToMergeError: nothing merges in the pipeline with a configuration.
        """
        run = {**self.loaded.describe_run(), "negative_prompt": self.loaded.settings.negative_prompt}
        del run["versions"]  # those of the machine
        machine = {**describe_machine(), "memory": explain_peak()}
        if self.edges is not None:  # another image may have taken the place of a file
            run["controlnet"]["edge_checksum"] = zlib.crc32(self.edges.tobytes())
        ledger = Ledger(ledger_path, {**run, **machine}, overwrite=overwrite)
        self._generate_missing(cases, ledger)
        levels = find_merging_levels(self.loaded.pipe, self.configurations) if self.times_blocks else []
        families = list(dict.fromkeys(each.family for each in self.configurations))
        try:
            rows = [
                Row.from_samples(each, [Sample(**ledger[case.key(each.name)]) for case in cases], levels)
                for each in sorted(self.configurations, key=lambda each: families.index(each.family))
            ]
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{ledger_path} holds results that this version did not write; give another --output, or --overwrite "
                "to start over"
            ) from error
        run["prompts"] = list(dict.fromkeys(case.prompt for case in cases))
        run["seeds"] = list(dict.fromkeys(case.seed for case in cases))
        return Report(title, run, machine, rows, levels)

    def _generate_missing(self, cases: Sequence[Case], ledger: Ledger) -> None:
        for each in self.configurations:
            key, settings = ["configuration", each.name], each.to_dict()
            if ledger.get(key, settings) != settings:
                raise UserError(
                    f"{ledger.path} has another configuration called {each.name!r}; give it another name, another "
                    "--output, or --overwrite to start over"
                )
            if key not in ledger:
                ledger.add(key, settings)
        jobs = []
        for number, case in enumerate(cases):
            keys = [case.key(each.name) for each in self.configurations]
            missing = [key for key in keys if key not in ledger or not self.images.has(key)]
            jobs.append((f"{case.prompt[:40]}, seed {case.seed}", missing, partial(self._run_case, number, case)))
        run_jobs(jobs, ledger, description="images")

    def _run_case(self, number: int, case: Case, keys: Sequence[Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Generate the images of a case; each case begins with another configuration."""
        missing = [each for each in self.configurations if case.key(each.name) in keys and each.name != UNMERGED]
        missing = rotate(missing, number)
        for start in range(0, max(1, len(missing)), IMAGES_PER_REFERENCE):
            reference = self._measure(unmerged(), case, None)
            if start == 0 and case.key(UNMERGED) in keys:
                self.images.write(UNMERGED, case, reference.image)
                yield case.key(UNMERGED), self._make_sample(case, reference, reference)
            first = self.images.open(UNMERGED, case)
            for configuration in missing[start : start + IMAGES_PER_REFERENCE]:
                generated = self._measure(configuration, case, first)
                self.images.write(configuration.name, case, generated.image)
                yield case.key(configuration.name), self._make_sample(case, generated, reference)

    def _measure(self, configuration: Configuration, case: Case, reference: Image.Image | None) -> GeneratedImage:
        """Measure an image, and its similarity to the unmerged one.

        On a GPU the blocks are timed in another call with the same noise, as their clock makes the rest slower.
        """
        import paddle

        from ppdiffusers_tome.api import remove_tome

        try:
            if configuration.name not in self._warmed_up:  # the first image of a configuration is slower
                replace(configuration, tome=make_warm_up_config(configuration.tome)).apply(self.loaded.pipe)
                self._generate(case, 1)
                self._warmed_up.add(configuration.name)
            configuration.apply(self.loaded.pipe)
            gc.collect()  # otherwise earlier images would count as memory, or be collected while this one is timed
            timed: AbstractContextManager[dict[int, float]] = nullcontext({})
            if self.times_blocks:
                timed = time_blocks(self.loaded.pipe)
            with timed as seconds:
                generated = self._generate(case, configuration.steps)
            if self.times_blocks and paddle.get_device() != "cpu":
                generated = self._generate(case, configuration.steps)
        finally:
            remove_tome(self.loaded.pipe)
        generated = replace(generated, block_seconds=seconds)
        return generated if reference is None else generated.compare_with(reference)

    def _generate(self, case: Case, steps: int | None) -> GeneratedImage:
        number = case.seed - self.loaded.settings.seed
        return self.loaded.generate(case.prompt, number, self.edges, steps=steps)

    def _make_sample(self, case: Case, generated: GeneratedImage, reference: GeneratedImage) -> dict[str, Any]:
        seconds, unmerged_seconds = (
            {str(level): seconds for level, seconds in image.block_seconds.items()} for image in (generated, reference)
        )
        return asdict(Sample(
            case.prompt, case.seed, generated.seconds, reference.seconds, seconds, unmerged_seconds,
            generated.denoising_peak_bytes, generated.peak_bytes, **similarity_to_dict(generated.similarity),
        ))  # fmt: skip


@contextmanager
def time_blocks(pipe: Any) -> Iterator[dict[int, float]]:
    """Sum the seconds inside the transformer blocks that could merge, by level.

    Merging counts: a configuration must be applied before, so that these hooks run before all others of a block and
    after all others. On a GPU every block waits for the device before and after.
    """
    from ppdiffusers_tome.patching.blocks import find_blocks
    from ppdiffusers_tome.patching.models import list_models

    seconds: dict[int, float] = {}
    clocks: list[DeviceClock] = []
    handles = []

    def start(block: Any, inputs: Any) -> Any:
        clocks.append(DeviceClock())

    def stop(level: int, block: Any, inputs: Any, output: Any) -> Any:
        seconds[level] += clocks.pop().lap()

    for _, model in list_models(pipe):
        for block in find_blocks(model):
            seconds.setdefault(block.level, 0.0)
            first = block.block.register_forward_pre_hook(start)
            block.block._forward_pre_hooks.move_to_end(first._hook_id, last=False)
            handles += [first, block.block.register_forward_post_hook(partial(stop, block.level))]
    try:
        yield seconds
    finally:
        for handle in handles:
            handle.remove()


def find_merging_levels(pipe: Any, configurations: Sequence[Configuration]) -> list[int]:
    """Return the levels, finest first, at which at least one configuration merges."""
    from ppdiffusers_tome.patching.blocks import find_blocks, select_blocks
    from ppdiffusers_tome.patching.models import list_models

    models = [find_blocks(model) for _, model in list_models(pipe)]
    configs = [each.tome for each in configurations if each.tome is not None]
    return sorted({block.level for config in configs for blocks in models for block in select_blocks(blocks, config)})

"""The run of ``evaluate`` and ``compare``: configurations take turns, and a stopped run resumes."""

from __future__ import annotations

import gc
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED, Configuration, unmerged
from ppdiffusers_tome.tools.evaluate.samples import Case, ImageFolder, Sample
from ppdiffusers_tome.tools.generation.settings import make_warm_up_config
from ppdiffusers_tome.tools.measure.ledger import Job, Ledger, run_jobs
from ppdiffusers_tome.tools.measure.similarity import similarity_to_dict
from ppdiffusers_tome.tools.measure.timing import rotate
from ppdiffusers_tome.tuning.measurement import DeviceClock

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
    from ppdiffusers_tome.tools.generation.results import GeneratedImage
    from ppdiffusers_tome.tools.ranks import Ranks

WARM_UP_STEPS = 1
IMAGES_PER_REFERENCE = 8  # whose seconds are compared with those of one unmerged image


@dataclass(frozen=True)
class Results:
    """The results of all cases.

    Attributes:
        run: the description of pipeline and settings that all images share.
        machine: the description of the machine.
        levels: at which any configuration merges; none if blocks were not timed.
        samples: by configuration, one per case.
    """

    run: dict[str, Any]
    machine: dict[str, Any]
    levels: list[int]
    samples: dict[str, list[Sample]]


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
        ranks: the processes that share the cases.
        edges: by prompt, for a ControlNet.
    """

    loaded: LoadedPipeline
    configurations: Sequence[Configuration]
    images: ImageFolder
    times_blocks: bool
    ranks: Ranks
    edges: Mapping[str, Image.Image] | None = None
    _warmed_up: set[str] = field(default_factory=set)

    def run(self, cases: Sequence[Case], ledger_path: Path, *, overwrite: bool) -> Results | None:
        """Generate and measure the images that the ledger or the folder lacks.

        Args:
            cases: every configuration generates them.
            ledger_path: the file of the results.
            overwrite: start over.

        Returns:
            All results; None on other ranks than the first.

        Raises:
            UserError: the ledger belongs to another run, or cannot be written.
            NothingToMergeError: nothing merges in the pipeline with a configuration.
        """
        from ppdiffusers_tome.tools.generation.device import get_device_name
        from ppdiffusers_tome.tools.measure.memory import explain_peak
        from ppdiffusers_tome.tools.measure.system import describe_machine

        ranks, loaded = self.ranks, self.loaded
        run = {**loaded.describe_run(), "negative_prompt": loaded.settings.negative_prompt}
        versions = run.pop("versions")
        machine = {**describe_machine(), **versions, "device": get_device_name(), "memory": explain_peak()}
        if self.edges is not None:  # another image may have taken the place of a file
            run["controlnet"]["edge_checksums"] = [zlib.crc32(image.tobytes()) for image in self.edges.values()]
        if not ranks.is_first:
            ranks.exchange(None, "the first rank has opened the ledger")
        with Ledger(ledger_path, run, overwrite=overwrite and ranks.is_first, rank=ranks.rank) as ledger:
            ledger.check_machine(machine)
            if ranks.is_first:
                ranks.exchange(None, "the first rank has opened the ledger")
            self._generate_missing(ranks.shard(cases), ledger)
            ranks.exchange(None, "all images are generated")
            ranks.leave()
            if not ranks.is_first:
                return None
            ledger.reload()
            levels = find_merging_levels(loaded.pipe, self.configurations) if self.times_blocks else []
            return Results(run, ledger.machine, levels, self._read_samples(cases, ledger))

    def _generate_missing(self, cases: Sequence[Case], ledger: Ledger) -> None:
        keys = {each.name: ["configuration", each.name] for each in self.configurations}
        for configuration in self.configurations:
            known = ledger.get(keys[configuration.name], configuration.to_dict())
            _check_settings(ledger, known, configuration)
        for configuration in self.configurations:
            if keys[configuration.name] not in ledger:
                ledger.add(keys[configuration.name], configuration.to_dict())
        jobs = [
            Job(f"{case.prompt[:40]}, seed {case.seed}", [case.key(each.name) for each in self.configurations],
                partial(self._run_case, number, case))
            for number, case in enumerate(cases)
        ]  # fmt: skip
        run_jobs(jobs, ledger, description="images", is_done=lambda key: key in ledger and self.images.has(key))

    def _read_samples(self, cases: Sequence[Case], ledger: Ledger) -> dict[str, list[Sample]]:
        try:
            return {
                each.name: [Sample(**ledger[case.key(each.name)]) for case in cases] for each in self.configurations
            }
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{ledger.path} holds results that this version did not write; give another --output, or --overwrite "
                "to start over"
            ) from error

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
        if configuration.name not in self._warmed_up:  # the first image of a configuration is slower
            replace(configuration, tome=make_warm_up_config(configuration.tome)).apply(self.loaded.pipe)
            self._generate(case, WARM_UP_STEPS)
            self._warmed_up.add(configuration.name)
        generate = partial(self._generate, case, configuration.steps)
        return measure_image(self.loaded.pipe, configuration, generate, reference, times_blocks=self.times_blocks)

    def _generate(self, case: Case, steps: int | None) -> GeneratedImage:
        guide = None if self.edges is None else self.edges[case.prompt]
        generated = self.loaded.generate(case.prompt, case.seed - self.loaded.settings.seed, guide, steps=steps)
        self.ranks.check_first_is_alive()  # which locks the ledger
        return generated

    def _make_sample(self, case: Case, generated: GeneratedImage, reference: GeneratedImage) -> dict[str, Any]:
        import numpy as np

        from ppdiffusers_tome.tools.demo_model.recognition import shows_subject

        seconds, unmerged_seconds = (
            {str(level): seconds for level, seconds in image.block_seconds.items()} for image in (generated, reference)
        )
        return asdict(Sample(
            case.prompt, case.seed, generated.seconds, reference.seconds, seconds, unmerged_seconds,
            generated.denoising_peak_bytes, generated.peak_bytes, **similarity_to_dict(generated.similarity),
            follows_prompt=(
                shows_subject(np.asarray(generated.image), case.prompt) if self.loaded.settings.model.bundled else None
            ),
        ))  # fmt: skip


def measure_image(
    pipe: Any, configuration: Configuration, generate: Callable[[], GeneratedImage],
    reference: Image.Image | np.ndarray | None = None, *, times_blocks: bool = True,
) -> GeneratedImage:  # fmt: skip
    """Measure one image of a configuration; the pipeline is unmerged afterwards.

    On a GPU the blocks are timed in another call with the same noise, as their clock makes the rest slower.

    Args:
        pipe: the pipeline that ``generate`` uses.
        configuration: is applied to it.
        generate: generates the image and measures the call.
        reference: the unmerged image of the same prompt and noise, as PIL has it or uint8 ``[height, width, 3]``.
        times_blocks: whether the seconds inside the blocks that merge are measured too.

    Returns:
        The image with the seconds of its blocks and, if there is a reference, its similarity.

    Raises:
        NothingToMergeError: the pipeline has no block that merges with these settings.
    """
    import paddle

    from ppdiffusers_tome.api import remove_tome

    try:
        configuration.apply(pipe)
        gc.collect()  # otherwise earlier images would count as memory, or be collected while this one is timed
        generated = None if times_blocks and paddle.get_device() == "cpu" else generate()
        if times_blocks:
            with time_blocks(pipe) as seconds:
                timed = generate()
            generated = replace(generated or timed, block_seconds=seconds)
    finally:
        remove_tome(pipe)
    assert generated is not None
    return generated if reference is None else generated.compare_with(reference)


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


def _check_settings(ledger: Ledger, known: Mapping[str, Any], configuration: Configuration) -> None:
    if known != configuration.to_dict():
        old_settings, settings = ({**values, **(values["tome"] or {})} for values in (known, configuration.to_dict()))
        changes = ", ".join(
            f"{name}={old_settings.get(name)!r} then and {value!r} now"
            for name, value in settings.items()
            if name != "tome" and value != old_settings.get(name)
        )
        raise UserError(
            f"{ledger.path} has another configuration called {configuration.name!r} ({changes}); give it another name, "
            "another --output, or --overwrite to start over"
        )

"""Generating all images of an evaluation: configurations take turns, and a stopped run resumes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED, Configuration, unmerged
from ppdiffusers_tome.tools.evaluate.samples import Case, ImageFolder, Sample
from ppdiffusers_tome.tools.generation.results import GeneratedImage
from ppdiffusers_tome.tools.measure.ledger import Ledger
from ppdiffusers_tome.tools.measure.runner import Job, run_jobs
from ppdiffusers_tome.tools.measure.timing import rotate
from ppdiffusers_tome.tuning.measurement import DeviceClock

WARM_UP_STEPS = 1
IMAGES_PER_REFERENCE = 8  # whose seconds are compared with those of one unmerged image


@dataclass
class Evaluation:
    """An evaluation of configurations.

    The images of a case follow each other, so that whatever slows the machine slows all configurations. A case begins
    with its unmerged image, which is generated again after ``IMAGES_PER_REFERENCE`` images and when a run resumes:
    seconds are compared with those of the same minutes. Similarity is always to the first unmerged image.

    Attributes:
        pipe: the pipeline that ``generate`` uses.
        generate: generates and measures the image of a case, with fewer steps if a number is given.
        configurations: the unmerged pipeline first.
        images: keeps the images.
        follows_prompt: tells whether an image ``[height, width, 3]`` shows its prompt; None if that is not known.
        times_blocks: whether the seconds inside the blocks that merge are measured too.
    """

    pipe: Any
    generate: Callable[[Case, int | None], GeneratedImage]
    configurations: Sequence[Configuration]
    images: ImageFolder
    follows_prompt: Callable[[np.ndarray, str], bool | None] = lambda image, prompt: None
    times_blocks: bool = True
    _warmed_up: set[str] = field(default_factory=set)

    def run(self, cases: Sequence[Case], ledger: Ledger) -> None:
        """Generate and measure the images that the ledger or the folder lacks.

        Raises:
            NothingToMergeError: nothing merges in the pipeline with a configuration.
            UserError: a name in the ledger has other settings.
        """
        for configuration in self.configurations:
            known = ledger.get(["configuration", configuration.name], configuration.to_dict())
            _check_settings(ledger, known, configuration)
        for configuration in self.configurations:
            if ["configuration", configuration.name] not in ledger:
                ledger.add(["configuration", configuration.name], configuration.to_dict())
        jobs = [
            Job(f"{case.prompt[:40]}, seed {case.seed}", [case.key(each.name) for each in self.configurations],
                partial(self._run_case, number, case))
            for number, case in enumerate(cases)
        ]  # fmt: skip
        run_jobs(jobs, ledger, description="images", is_done=lambda key: key in ledger and self.images.has(key))

    def read_samples(self, cases: Sequence[Case], ledger: Ledger) -> dict[str, list[Sample]]:
        """Return the samples of all cases by configuration.

        Raises:
            UserError: another version wrote the ledger.
        """
        try:
            return {
                each.name: [Sample.from_dict(ledger[case.key(each.name)]) for case in cases]
                for each in self.configurations
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{ledger.path} holds results that this version did not write; give another --output, or --overwrite "
                "to start over"
            ) from error

    def _run_case(self, number: int, case: Case, keys: Sequence[Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Generate the images of a case; other configurations begin in every case."""
        missing = [each for each in self.configurations if case.key(each.name) in keys and each.name != UNMERGED]
        missing = rotate(missing, number)
        for start in range(0, max(1, len(missing)), IMAGES_PER_REFERENCE):
            reference = self._measure(unmerged(), case, None)
            if start == 0 and case.key(UNMERGED) in keys:
                self.images.write(UNMERGED, case, reference.image)
                yield case.key(UNMERGED), self._make_sample(case, reference, reference)
            pixels = self.images.read(UNMERGED, case)
            for configuration in missing[start : start + IMAGES_PER_REFERENCE]:
                generated = self._measure(configuration, case, pixels)
                self.images.write(configuration.name, case, generated.image)
                yield case.key(configuration.name), self._make_sample(case, generated, reference)

    def _measure(self, configuration: Configuration, case: Case, reference: np.ndarray | None) -> GeneratedImage:
        if configuration.name not in self._warmed_up:  # the first image of a configuration is slower
            configuration.apply(self.pipe)
            self.generate(case, WARM_UP_STEPS)
            self._warmed_up.add(configuration.name)
        return measure_image(
            self.pipe, configuration, lambda: self.generate(case, None), reference, times_blocks=self.times_blocks
        )

    def _make_sample(self, case: Case, generated: GeneratedImage, reference: GeneratedImage) -> dict[str, Any]:
        return Sample(
            case, generated.seconds, reference.seconds, generated.block_seconds, reference.block_seconds,
            generated.denoising_peak_bytes, generated.peak_bytes, generated.similarity,
            self.follows_prompt(np.asarray(generated.image), case.prompt),
        ).to_dict()  # fmt: skip


def measure_image(
    pipe: Any, configuration: Configuration, generate: Callable[[], GeneratedImage],
    reference: np.ndarray | None = None, *, times_blocks: bool = True,
) -> GeneratedImage:  # fmt: skip
    """Measure one image of a configuration; the pipeline is unmerged afterwards.

    On a GPU the blocks are timed in another call with the same noise, as their clock makes the rest slower.

    Args:
        pipe: the pipeline that ``generate`` uses.
        configuration: is applied to it.
        generate: generates the image and measures the call.
        reference: the unmerged image of the same prompt and noise, uint8 ``[height, width, 3]``.
        times_blocks: whether the seconds inside the blocks that merge are measured too.

    Returns:
        The image with the seconds of its blocks and, if there is a reference, its similarity.

    Raises:
        NothingToMergeError: the pipeline has no block that merges with these settings.
    """
    import paddle

    from ppdiffusers_tome.api import remove_tome

    clock = BlockClock(pipe)
    try:
        configuration.apply(pipe)
        gc.collect()  # otherwise earlier images would count as memory, or be collected while this one is timed
        generated = None if times_blocks and paddle.get_device() == "cpu" else generate()
        if times_blocks:
            with clock:
                timed = generate()
            generated = generated or timed
    finally:
        remove_tome(pipe)
    assert generated is not None
    generated = replace(generated, block_seconds=clock.seconds)
    return generated if reference is None else generated.compare_with(reference)


class BlockClock:
    """Seconds inside the transformer blocks that could merge, merging included, in a ``with`` statement.

    A configuration must be applied before. The hooks run before all others of a block and after all others, whatever
    merges there. On a GPU every block waits for the device before and after.

    Attributes:
        seconds: by level (1, 2, 4 or 8), summed over blocks and calls.
    """

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._handles: list[Any] = []
        self._clock: DeviceClock | None = None
        self.seconds: dict[int, float] = {}

    def __enter__(self) -> BlockClock:
        from ppdiffusers_tome.patching.blocks import find_blocks
        from ppdiffusers_tome.patching.models import list_models

        for _, model in list_models(self._pipe):
            for block in find_blocks(model):
                self.seconds.setdefault(block.level, 0.0)
                start = block.block.register_forward_pre_hook(self._start)
                block.block._forward_pre_hooks.move_to_end(start._hook_id, last=False)
                self._handles += [start, block.block.register_forward_post_hook(partial(self._stop, block.level))]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _start(self, block: Any, inputs: Any) -> Any:
        self._clock = DeviceClock()

    def _stop(self, level: int, block: Any, inputs: Any, output: Any) -> Any:
        assert self._clock is not None
        self.seconds[level] += self._clock.lap()


def find_merging_levels(pipe: Any, configurations: Sequence[Configuration]) -> list[int]:
    """Return the levels, finest first, at which at least one configuration merges."""
    from ppdiffusers_tome.patching.blocks import find_blocks, select_blocks
    from ppdiffusers_tome.patching.models import list_models

    models = [find_blocks(model) for _, model in list_models(pipe)]
    configs = [each.tome for each in configurations if each.tome is not None]
    return sorted({block.level for config in configs for blocks in models for block in select_blocks(blocks, config)})


def _check_settings(ledger: Ledger, known: Mapping[str, Any], configuration: Configuration) -> None:
    new = configuration.to_dict()
    if known != new:
        old_settings, settings = ({**values, **(values["tome"] or {})} for values in (known, new))
        changes = ", ".join(
            f"{name}={old_settings.get(name)!r} then and {value!r} now"
            for name, value in settings.items()
            if name != "tome" and value != old_settings.get(name)
        )
        raise UserError(
            f"{ledger.path} has another configuration called {configuration.name!r} ({changes}); give it another name, "
            "another --output, or --overwrite to start over"
        )

"""The run of ``evaluate`` and ``compare``, from a loaded pipeline to all samples."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from ppdiffusers_tome.tools.evaluate.configurations import Configuration
from ppdiffusers_tome.tools.evaluate.runner import Evaluation, find_merging_levels
from ppdiffusers_tome.tools.evaluate.samples import Case, ImageFolder, Sample
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from ppdiffusers_tome.tools.generation.results import GeneratedImage
from ppdiffusers_tome.tools.measure.ledger import Ledger
from ppdiffusers_tome.tools.ranks import Ranks


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


def evaluate_cases(
    loaded: LoadedPipeline, configurations: Sequence[Configuration], cases: Sequence[Case], images: ImageFolder,
    ledger_path: Path, *, edges: Mapping[str, Image.Image] | None = None, times_blocks: bool, overwrite: bool,
    ranks: Ranks,
) -> Results | None:  # fmt: skip
    """Generate and measure the images of all cases that earlier runs did not finish.

    Args:
        loaded: generates the images.
        configurations: the unmerged pipeline first.
        cases: every configuration generates them.
        images: keeps the images.
        ledger_path: the file of the results.
        edges: by prompt, for a ControlNet.
        times_blocks: whether the seconds inside the blocks that merge are measured too.
        overwrite: start over.
        ranks: the processes that share the cases.

    Returns:
        All results; None on other ranks than the first.

    Raises:
        UserError: the ledger belongs to another run, or cannot be written.
        NothingToMergeError: nothing merges in the pipeline with a configuration.
    """
    from ppdiffusers_tome.tools.demo_model.recognition import shows_subject
    from ppdiffusers_tome.tools.generation.device import get_device_name
    from ppdiffusers_tome.tools.measure.memory import explain_peak
    from ppdiffusers_tome.tools.measure.system import describe_machine

    settings = loaded.settings

    def generate(case: Case, steps: int | None) -> GeneratedImage:
        guide = None if edges is None else edges[case.prompt]
        return loaded.generate(case.prompt, case.seed - settings.seed, guide, steps=steps)

    evaluation = Evaluation(loaded.pipe, generate, configurations, images, times_blocks=times_blocks)
    if settings.model.bundled:
        evaluation.follows_prompt = shows_subject
    run = {**loaded.describe_run(), "negative_prompt": settings.negative_prompt}
    versions = run.pop("versions")
    if edges is not None:  # another image may have taken the place of a file
        run["controlnet"]["edge_checksums"] = [zlib.crc32(image.tobytes()) for image in edges.values()]
    if not ranks.is_first:
        ranks.exchange(None, "the first rank has opened the ledger")
    with Ledger(ledger_path, run, overwrite=overwrite and ranks.is_first, rank=ranks.rank) as ledger:
        ledger.check_machine({**describe_machine(), **versions, "device": get_device_name(), "memory": explain_peak()})
        if ranks.is_first:
            ranks.exchange(None, "the first rank has opened the ledger")
        evaluation.run(ranks.shard(cases), ledger)
        ranks.exchange(None, "all images are generated")
        ranks.leave()
        if not ranks.is_first:
            return None
        ledger.reload()
        levels = find_merging_levels(loaded.pipe, configurations) if times_blocks else []
        return Results(run, ledger.machine, levels, evaluation.read_samples(cases, ledger))

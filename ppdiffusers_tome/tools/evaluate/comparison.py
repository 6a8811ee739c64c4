"""A few pictures side by side: every prompt by every configuration, drawn and laid out."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image
from tqdm import tqdm

from ppdiffusers_tome.tools.evaluate.configurations import UNMERGED, Configuration
from ppdiffusers_tome.tools.evaluate.runner import WARM_UP_STEPS
from ppdiffusers_tome.tools.evaluate.samples import Case, Sample
from ppdiffusers_tome.tools.evaluate.summary import Row
from ppdiffusers_tome.tools.figures.sheet import Cell, Label, make_sheet
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline
from ppdiffusers_tome.tools.measure.similarity import format_psnr
from ppdiffusers_tome.tools.measure.units import format_bytes


def draw_all(
    loaded: LoadedPipeline, prompts: Sequence[str], configurations: Sequence[Configuration],
    edges: Sequence[Image.Image] | None,
) -> dict[str, list[Sample]]:
    """Draw every prompt with all configurations, the unmerged pipeline first, all from the same noise.

    All are warmed up before anything is timed, and a prompt is drawn with all before the next one's turn, so that what
    slows the machine down for a while slows all of them.

    Args:
        loaded: draws them.
        prompts, configurations: which.
        edges: one for each prompt; None where there is no ControlNet.

    Returns:
        by the configurations' names, a sample a prompt.
    """
    guides: Sequence[Image.Image | None] = [None] * len(prompts) if edges is None else edges
    for configuration in tqdm(configurations, desc="warming up", position=0, leave=False, disable=None):
        configuration.apply(loaded.pipe)
        loaded.generate(prompts[0], 0, guides[0], steps=WARM_UP_STEPS)
    samples: dict[str, list[Sample]] = {configuration.name: [] for configuration in configurations}
    with tqdm(total=len(configurations) * len(prompts), desc="pictures", position=0, disable=None) as bar:
        for number, prompt in enumerate(prompts):
            case = Case(prompt, loaded.settings.seed + number)
            for configuration in configurations:
                configuration.apply(loaded.pipe)
                drawn = loaded.generate(prompt, number, guides[number])
                if configuration.name != UNMERGED:
                    drawn = drawn.compare_with(samples[UNMERGED][number].drawn.image)
                samples[configuration.name].append(Sample(configuration.name, case, 1, drawn))
                bar.update()
    return samples


def sheet(
    title: str, notes: Sequence[str], edges: Sequence[Image.Image] | None, rows: Sequence[Row]
) -> Image.Image:
    """All pictures: one row per prompt, one column per configuration, and the edges on the left where there are any."""
    columns = [*([] if edges is None else [Label("edges")]), *map(_column, rows)]
    lines = []
    for number, sample in enumerate(rows[0].samples):
        cells = [_cell(row.samples[number]) for row in rows]
        lines.append((sample.case.prompt, cells if edges is None else [Cell(edges[number]), *cells]))
    return make_sheet(Label(title, tuple(notes)), columns, lines)


def _column(row: Row) -> Label:
    seconds, memory = f"{row.seconds.median:.2f} s", f"{format_bytes(row.denoising_peak_bytes)} denoising"
    if row.psnr is None:
        return Label(row.configuration.name, (seconds, memory))
    psnr = format_psnr(row.psnr.median)
    similarity = psnr if psnr == "identical" else f"PSNR {psnr} dB"
    return Label(
        row.configuration.name,
        (f"{seconds} · {row.speed_up.median:.2f}x the speed", f"{memory} · {similarity}"),
    )


def _cell(sample: Sample) -> Cell:
    drawn = sample.drawn
    seconds = f"{drawn.seconds:.2f} s"
    return Cell(drawn.image, seconds if drawn.similarity is None else f"{seconds} · {drawn.similarity}")

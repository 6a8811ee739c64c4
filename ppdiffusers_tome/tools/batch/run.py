"""The command ``generate --prompts``, which resumes where an earlier run was stopped."""

from __future__ import annotations

import argparse
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.batch.generator import Generator
from ppdiffusers_tome.tools.batch.options import STOP, BatchOptions
from ppdiffusers_tome.tools.batch.output_folder import SKIPPED, OutputFolder
from ppdiffusers_tome.tools.batch.specs import BadLine, ImageSpec, form_batches, read_specs
from ppdiffusers_tome.tools.console.output import log, print_line, quiet_libraries, warn
from ppdiffusers_tome.tools.measure.out_of_memory import free_memory, is_out_of_memory
from ppdiffusers_tome.tools.ranks import Ranks

if TYPE_CHECKING:
    from PIL import Image


def generate_from_file(args: argparse.Namespace) -> None:
    """Generate the images of a file of prompts that are not finished yet."""
    options, ranks = BatchOptions.from_arguments(args), Ranks.from_environment()
    log(f"checking the lines of {options.prompts} ...")
    specs, bad = read_specs(options)
    worker = Worker(options, ranks, specs)
    if not ranks.is_first:
        with quiet_libraries():
            worker.run()
        return
    _report_bad_lines(options, specs, bad)
    folder = OutputFolder(options)
    with folder.lock():
        folder.prepare(specs)
        num_before = len(folder.read_finished())
        num_lines = len(specs) + len(bad)
        if ranks.size > 1 or num_before < len(specs):
            with quiet_libraries():
                bad += worker.run()
        num_finished = folder.finish(specs, bad)
    skipped = f"; {len(bad)} skipped, see {options.output / SKIPPED}" if bad else ""
    print_line(
        f"{num_finished} of {num_lines} images are in {options.output}: {num_finished - num_before} generated now, "
        f"{num_before} before{skipped}"
    )


@dataclass
class Worker:
    """One rank at work on its part of all images."""

    options: BatchOptions
    ranks: Ranks
    specs: Sequence[ImageSpec]
    _generator: Generator = field(default_factory=Generator)
    _skipped: list[BadLine] = field(default_factory=list)
    _too_many: dict[tuple[Any, ...], int] = field(default_factory=dict)  # images at once, by batch_key

    def run(self) -> list[BadLine]:
        """Generate this rank's part; return the lines that all ranks skipped."""
        from tqdm import tqdm

        self.ranks.exchange(None, "prepared")
        finished = OutputFolder(self.options).read_finished()
        batches = form_batches(self.specs, self.options.batch_size)
        left = [batch for batch in batches if any(spec.number not in finished for spec in batch)]
        for batch in tqdm(left[self.ranks.rank :: self.ranks.size], desc="batches", position=0, disable=None):
            self.ranks.check_first_is_alive()
            self._generator.load(batch[0])  # a model that cannot be loaded is no line's fault
            self._generate([spec for spec in batch if self._can_be_generated(spec, finished)], finished)
        skipped = self.ranks.exchange(self._skipped, "finished")
        self.ranks.leave()
        return [BadLine(*bad) for found in skipped for bad in found]

    def _can_be_generated(self, spec: ImageSpec, finished: Container[int]) -> bool:
        try:
            self._generator.check(spec)
        except UserError as error:
            if spec.number not in finished:
                self._skip(spec, str(error))
            return False
        return True

    def _skip(self, spec: ImageSpec, error: str) -> None:
        bad = BadLine(spec.number, spec.line, error)
        if self.options.on_error == STOP:
            raise _make_stop(self.options, [bad])
        _warn_of_skipping(self.options, bad)
        self._skipped.append(bad)

    def _generate(self, specs: Sequence[ImageSpec], finished: Container[int]) -> None:
        """Generate specs together, or in halves where memory is short, and write them.

        The halves are the same whether memory fell short just now or is known to, so that a run that resumes generates
        what one that was never stopped would have.
        """
        if all(spec.number in finished for spec in specs):
            return
        images, began = None, time.perf_counter()
        if len(specs) < self._too_many.get(specs[0].batch_key, len(specs) + 1):
            images = self._try_to_generate(specs)
        if images is not None:
            seconds, numbers = (time.perf_counter() - began) / len(specs), [spec.number for spec in specs]
            for spec, image in zip(specs, images, strict=True):
                if spec.number not in finished:
                    description = self._generator.load(spec).describe(spec.prompt, 0)
                    path = OutputFolder(self.options).write(spec, image, description, numbers)
                    print_line(f"{path}  {seconds:.2f} s")
        elif len(specs) == 1:
            self._skip(specs[0], "the device has not enough memory for this one image; make it smaller")
        else:
            half = (len(specs) + 1) // 2
            self._generate(specs[:half], finished)
            self._generate(specs[half:], finished)

    def _try_to_generate(self, specs: Sequence[ImageSpec]) -> list[Image.Image] | None:
        """Return the images, or None after freeing memory where they do not fit."""
        try:
            return self._generator.generate(specs)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        self._too_many[specs[0].batch_key] = len(specs)
        free_memory()
        if len(specs) > 1:
            warn(f"out of memory with {len(specs)} images at once; continuing with {(len(specs) + 1) // 2}")
        return None


def _report_bad_lines(options: BatchOptions, specs: Sequence[ImageSpec], bad: Sequence[BadLine]) -> None:
    """Warn of bad lines, or stop at the first, before a model is loaded."""
    if specs and options.settings.controlnet is not None and all(spec.settings.edges is None for spec in specs):
        raise UserError(
            "--controlnet needs edges; give lines an image or control_image, or all of them one with --image or "
            "--control-image"
        )
    if options.on_error != STOP:
        for line in bad:
            _warn_of_skipping(options, line)
        return
    found = list(bad)
    for spec in specs:
        try:
            spec.check()
        except UserError as error:
            found.append(BadLine(spec.number, spec.line, str(error)))
    if found:
        raise _make_stop(options, found)


def _make_stop(options: BatchOptions, found: Sequence[BadLine]) -> UserError:
    """Make the error that stops a run, about the first bad line."""
    first, more = min(found), f" ({len(found) - 1} more bad lines)" if len(found) > 1 else ""
    return UserError(
        f"--prompts {options.prompts}, line {first.line}: {first.error}; correct it and give the same command again, "
        f"which resumes there, or omit such lines with --on-error skip{more}"
    )


def _warn_of_skipping(options: BatchOptions, bad: BadLine) -> None:
    warn(f"--prompts {options.prompts}, line {bad.line} is skipped: {bad.error}")

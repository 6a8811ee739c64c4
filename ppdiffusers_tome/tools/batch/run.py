"""The command ``generate --prompts``: an image a line, missing ones alone."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ppdiffusers_tome.errors import ToMeError, UserError
from ppdiffusers_tome.files import prepare_folder
from ppdiffusers_tome.settings.text import shorten_repr
from ppdiffusers_tome.tools.batch.prompts_file import check_names, read_entries
from ppdiffusers_tome.tools.console.output import print_line, quiet_libraries, warn
from ppdiffusers_tome.tools.generation.loaded_pipeline import LoadedPipeline, load_from_settings
from ppdiffusers_tome.tools.generation.settings import (
    Settings,
    check_seed,
    check_size,
    check_text,
    parse_settings,
    refuse_without_edges,
    refuse_without_merging,
)
from ppdiffusers_tome.tools.images import read_settings, slugify, write_image
from ppdiffusers_tome.tools.measure.units import format_count

_MAX_BYTES = 200  # of 255, as a temporary file has a longer name
_FILE_NAME = re.compile(r'[^\s.<>:"/\\|?*\x00-\x1f\x7f][^<>:"/\\|?*\x00-\x1f\x7f]*\.png', re.IGNORECASE)


class ImageSpec(NamedTuple):
    """An image that a line asks for."""

    line: int  # of the file, from 1
    path: Path
    prompt: str
    settings: Settings  # those of the command with the changes of the line

    @property
    def batch_key(self) -> tuple[Any, ...]:
        """Everything that images generated at once have in common."""
        settings = self.settings
        return settings.height, settings.width, settings.tome, settings.negative_prompt is None

    def is_finished(self) -> bool:
        """Return whether the image is there; refuse other settings."""
        if not self.path.exists():
            return False
        kept: dict[str, Any] = {}
        with suppress(Exception):  # whatever the file holds, it is no such image
            kept = read_settings(self.path)
        for name, value in self.settings.describe(self.prompt).items():
            is_default = value is None and name in kept.get("defaults", ())
            if not is_default and kept.get(name) != value:
                raise UserError(
                    f"{self.path} is there with another {name} than line {self.line} asks for; give another --output, "
                    "or replace it with --overwrite"
                )
        return True


def generate_from_file(args: argparse.Namespace) -> None:
    """Generate the missing images of a file of prompts.

    Of processes that ``paddle.distributed.launch`` started, each takes every n-th line.
    """
    if args.prompt:
        raise UserError("--prompt and --prompts were both given; write all prompts into the file")
    batch_size = 1 if args.batch_size is None else args.batch_size
    if batch_size < 1:
        raise UserError(f"--batch-size {batch_size} must be 1 or more")
    rank, ranks = (int(os.environ.get(f"PADDLE_{name}") or 0) for name in ("TRAINER_ID", "TRAINERS_NUM"))
    specs, num_bad = _read_specs(args)
    specs = specs[rank :: ranks or 1]
    prepare_folder(args.output, [], overwrite=True)
    missing = [spec for spec in specs if args.overwrite or not spec.is_finished()]
    # A ControlNet makes another pipeline, so images without come first, and one is in memory at a time.
    done = 0
    for guided in (False, True):
        chosen = [spec for spec in missing if (spec.settings.edges is not None) == guided]
        if chosen:
            with quiet_libraries():
                done += _generate(chosen, batch_size, args.overwrite)
    before, skipped = len(specs) - len(missing), num_bad + len(missing) - done
    ending = f"; {format_count(skipped, 'line')} skipped, as the warnings say" if skipped else ""
    images = f"{format_count(before + done, 'image')} of {args.prompts}, in {args.output}"
    print_line(f"{images}: {done} generated now, {before} before{ending}")


def _read_specs(args: argparse.Namespace) -> tuple[list[ImageSpec], int]:
    """Read the images that lines ask for; count bad lines."""
    settings = parse_settings(args, args.ratio, provides_edges=True)
    specs: list[ImageSpec] = []
    lines: dict[str, int] = {}
    num_bad = 0
    for number, (line, values) in enumerate(read_entries(args.prompts), start=1):
        try:
            if isinstance(values, UserError):
                raise values
            spec = _make_spec(args, settings, values, number, line)
            first = lines.setdefault(spec.path.name, line)
            if first != line:
                raise UserError(f"output {spec.path.name!r} is that of line {first} already; give each line its own")
            specs.append(spec)
        except ToMeError as error:
            num_bad += 1
            _warn_of_skipping(line, error)
    if not specs:
        raise UserError(f"--prompts {args.prompts} holds no prompt that can be used; write one per line")
    refuse_without_edges(args, [spec.settings for spec in specs])
    refuse_without_merging(args, [spec.settings.tome for spec in specs])
    return specs, num_bad


def _make_spec(
    args: argparse.Namespace, settings: Settings, values: Mapping[str, Any], number: int, line: int
) -> ImageSpec:
    """Check the values of a line, all texts in tables."""
    check_names(values)
    for name in ("prompt", "negative_prompt", "image", "control_image", "output"):
        if name in values:
            check_text(name, values[name])
    prompt = values.get("prompt", "")
    if not prompt.strip():
        raise UserError("it has no prompt; say what to generate")
    kinds: dict[str, Callable[[str], Any]] = {"seed": int, "height": int, "width": int, "ratio": float}
    numbers = {name: _parse_number(name, values[name], kind) for name, kind in kinds.items() if name in values}
    seed = numbers.get("seed", settings.seed + number - 1)
    check_seed("seed", seed)
    for name in ("height", "width"):
        check_size(name, numbers.get(name))
    photo, edges = (args.prompts.parent / values[key] if key in values else None for key in ("image", "control_image"))
    settings = settings.guide(photo, edges, args.canny_low, args.canny_high)
    settings = replace(
        settings, seed=seed, height=numbers.get("height", settings.height), width=numbers.get("width", settings.width),
        negative_prompt=values.get("negative_prompt", settings.negative_prompt),
        tome=replace(settings.tome, ratio=numbers["ratio"]) if "ratio" in numbers else settings.tome,
        controlnet=settings.controlnet if settings.edges else None,
    )  # fmt: skip
    settings.check_memory()
    name = values.get("output", f"{number:06d}-{slugify(prompt)}.png")
    if not _FILE_NAME.fullmatch(name) or len(name.encode()) > _MAX_BYTES:
        raise UserError(
            f"output {shorten_repr(name)} must be the name of a file alone that ends in .png, such as star.png: "
            f'not hidden, without <>:"/\\|?* and control characters, at most {_MAX_BYTES} bytes'
        )
    return ImageSpec(line, args.output / name, prompt, settings)


def _parse_number(name: str, value: Any, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(str(value))  # so that True is no number, and 0.5 no whole one
    except ValueError:
        accepted = "a whole number" if kind is int else "a number such as 0.5"
        raise UserError(f"{name} {shorten_repr(value)} must be {accepted}") from None


def _generate(specs: Sequence[ImageSpec], batch_size: int, overwrite: bool) -> int:
    """Generate images that one pipeline can; return how many."""
    from tqdm import tqdm

    from ppdiffusers_tome.tools.generation.sampling import generate_batch

    loaded, done, said = load_from_settings(specs[0].settings), 0, ""
    bar = tqdm(total=len(specs), desc="images", position=0, disable=None)
    for batch in _form_batches(loaded, specs, batch_size):
        started, edges = time.perf_counter(), [image for _, image in batch if image is not None]
        own = [replace(loaded, settings=spec.settings) for spec, _ in batch]
        own[0].apply(own[0].settings.tome)
        negative_prompts = [each.settings.negative_prompt for each in own if each.settings.negative_prompt is not None]
        images = generate_batch(
            loaded.pipe, [spec.prompt for spec, _ in batch], seeds=[each.settings.seed for each in own],
            negative_prompts=negative_prompts or None, edges=edges or None, **own[0].batch_arguments,
        )  # fmt: skip
        seconds = (time.perf_counter() - started) / len(batch)
        for each, (spec, _), image in zip(own, batch, images, strict=True):
            write_image(spec.path, image, each.describe(spec.prompt, 0), overwrite=overwrite)
            print_line(f"{spec.path}  {seconds:.2f} s")
        if said != loaded.describe_merging():  # lines may have ratios of their own
            said = loaded.describe_merging()
            print_line(said)
        done += len(batch)
        bar.update(len(batch))
    bar.close()
    return done


def _form_batches(
    loaded: LoadedPipeline, specs: Sequence[ImageSpec], size: int
) -> Iterator[list[tuple[ImageSpec, Any]]]:
    """Yield images that can be generated at once, with their edges."""
    warned: set[str] = set()
    batches: dict[tuple[Any, ...], list[tuple[ImageSpec, Any]]] = {}
    for spec in specs:
        own = replace(loaded, settings=spec.settings)
        try:
            own.check(spec.prompt)
            edges = own.load_edges(spec.settings.edges)
        except UserError as error:
            _warn_of_skipping(spec.line, error)
            continue
        for name, oddity in own.describe_oddities(spec.prompt).items():
            if name not in warned:
                warned.add(name)
                warn(f"line {spec.line}: {oddity} (later lines of which the same is true are not reported)")
        batch = batches.setdefault(spec.batch_key, [])
        batch.append((spec, edges))
        if len(batch) == size:
            yield batches.pop(spec.batch_key)
    yield from batches.values()


def _warn_of_skipping(line: int, error: ToMeError) -> None:
    warn(f"line {line} is skipped: {' '.join(str(error).split())}")

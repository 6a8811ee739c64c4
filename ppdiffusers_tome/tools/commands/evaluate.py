"""``ppdiffusers-tome evaluate``: prompts by seeds by configurations, in seconds, memory and likeness; resumable."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.bench.contenders import PORT
from ppdiffusers_tome.tools.drawing.arguments import add_output_arguments, add_picture_arguments, add_tome_arguments
from ppdiffusers_tome.tools.drawing.settings import MAX_SEED, Settings, check_prompts, given_tome, settings_from
from ppdiffusers_tome.tools.evaluation.configurations import Configuration, distinct, from_files, from_suite, ours, port

if TYPE_CHECKING:
    import numpy as np

    from ppdiffusers_tome.tools.drawing.studio import Studio
    from ppdiffusers_tome.tools.evaluation.ledger import EvaluationLedger, Turn
    from ppdiffusers_tome.tools.evaluation.turns import Hall
    from ppdiffusers_tome.tools.many_prompts.ranks import Ranks

HELP = "Draw many prompts with many settings; measure speed, memory and likeness, and plot one against the other."
EXAMPLES = """writes evaluate.md, evaluate.json and evaluate.png (likeness against speed-up), the unmerged pictures in
references/, and evaluate.jsonl picture by picture: stopped, the same command goes on where it was, and one with more
prompts, seeds or configurations adds to what is there.

a suite is a file with one configuration a line; besides the settings it may name a family, which is a line of the plot:
  {"name": "port 0.5", "contender": "port", "ratio": 0.5}
  {"name": "tiles 0.5", "family": "tiles", "ratio": 0.5, "tile": 16}

examples:
  ppdiffusers-tome evaluate --ratios 0.3 0.5 0.7 --port-ratios 0.3 0.5 0.7 --held-out 20
  ppdiffusers-tome evaluate --configs fast.json careful.json --prompt "a yellow star on a purple background"
  ppdiffusers-tome evaluate --model runwayml/stable-diffusion-v1-5 --dtype float16 --prompts prompts.txt --seeds 0 1 \\
      --ratios 0.3 0.5 --clip clip-vit-large-patch14 --real photos
"""

RATIOS = (0.25, 0.5, 0.7)
HELD_OUT = 3
ENDS = ("md", "json", "png")
INCEPTION_ENDINGS = (".pdmodel", ".pdiparams", ".json")
CLIP_FILES = ("config.json", "preprocessor_config.json", "vocab.json", "merges.txt")
# The port merges in whole cells of 2x2 tokens; at coarser levels it fails on what is left over.
_PORT_MULTIPLE = 16


@dataclass(frozen=True)
class Networks:
    """The networks that score pictures, and the real pictures; None where they were not given."""

    clip: Path | None
    inception: Path | None
    real: Path | None

    @property
    def wanted(self) -> bool:
        return self.clip is not None or self.inception is not None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_picture_arguments(parser, several_seeds=True)
    group = parser.add_argument_group("more prompts")
    group.add_argument("--prompts", type=Path, metavar="FILE", help="one prompt a line")
    group.add_argument("--held-out", type=int, metavar="N",
                       help="N prompts that the bundled model never saw in training (default without any other "
                       f"prompt: {HELD_OUT})")
    group = parser.add_argument_group("what is compared with the unmerged pipeline")
    group.add_argument("--ratios", type=float, nargs="*", metavar="X",
                       help="shares of the tokens to merge, with the settings below (default where nothing else is "
                       f"compared: {' '.join(map(str, RATIOS))})")
    group.add_argument("--port-ratios", type=float, nargs="+", default=[], metavar="X",
                       help="the same for ppdiffusers' own port of tomesd")
    group.add_argument("--configs", nargs="+", default=[], metavar="FILE",
                       help="presets, or JSON files of settings as ToMeConfig.save writes them; called by their names")
    group.add_argument("--suite", type=Path, metavar="FILE", help="a file with one configuration a line, see below")
    add_tome_arguments(parser)
    group = parser.add_argument_group("scores of networks (nothing is ever downloaded)")
    group.add_argument("--clip", type=Path, metavar="FOLDER", help="a CLIPModel of paddlenlp with its processor")
    group.add_argument("--inception", type=Path, metavar="FILE",
                       help="Inception's features, saved with paddle.jit.save, for FID; see docs/evaluate.md")
    group.add_argument("--real", type=Path, metavar="FOLDER", help="real pictures, for the Frechet distance to them")
    add_output_arguments(parser)
    parser.add_argument("--save-pictures", action="store_true", help="keep all pictures, not the unmerged ones alone")
    # Text to image alone; the seed of a picture is one of --seeds.
    parser.set_defaults(
        seed=0, controlnet=None, image=None, control_image=None, canny_low=100, canny_high=200, controlnet_scale=1.0
    )


def run(args: argparse.Namespace) -> None:
    settings = settings_from(args, 0.0)  # each configuration has its own
    configurations = _configurations(args)
    networks = _networks(args)
    for seed in args.seeds:
        if not 0 <= seed <= MAX_SEED:
            raise UserError(f"--seeds {seed} must be from 0 to 2**62")
    prompts = _prompts(args, settings)
    from ppdiffusers_tome.exporting.files import prepare_folder
    from ppdiffusers_tome.tools.evaluation.ledger import Turn
    from ppdiffusers_tome.tools.evaluation.turns import Hall

    turns = [Turn(prompt, seed) for prompt in prompts for seed in dict.fromkeys(args.seeds)]
    hall = Hall(args.output, args.save_pictures or networks.wanted)
    # The other files are made of the ledger, so where that is ours so are they.
    overwrite = args.overwrite or (args.output / "evaluate.jsonl").is_file()
    prepare_folder(args.output, [f"evaluate.{end}" for end in ENDS], overwrite=overwrite)
    hall.prepare(configurations, turns, overwrite=overwrite)
    from ppdiffusers_tome.tools.console.output import quiet_libraries

    with quiet_libraries():
        _evaluate(settings, configurations, turns, networks, hall, overwrite=args.overwrite)


def _configurations(args: argparse.Namespace) -> list[Configuration]:
    """The unmerged pipeline, and all that is compared with it."""
    ratios = args.ratios
    if ratios is None:
        ratios = [] if args.port_ratios or args.configs or args.suite else RATIOS
    found = [ours(settings_from(args, ratio).tome) for ratio in ratios]
    found += [port(ratio, given_tome(args).get("max_downsample")) for ratio in args.port_ratios]
    found += from_files(args.configs)
    found += from_suite(args.suite) if args.suite else []
    return distinct(found)


def _networks(args: argparse.Namespace) -> Networks:
    """Networks and real pictures, as far as can be seen from outside."""
    inception = args.inception
    if inception is not None and inception.suffix in INCEPTION_ENDINGS:
        inception = inception.with_suffix("")
    networks = Networks(args.clip, inception, args.real)
    if args.clip is not None:
        missing = [name for name in CLIP_FILES if not (args.clip / name).is_file()]
        if missing:
            raise UserError(
                f"--clip {args.clip} has no {', '.join(missing)}; give a folder that holds what CLIPModel and "
                "CLIPProcessor of paddlenlp write with save_pretrained"
            )
    if args.inception is not None:
        if args.real is None:
            raise UserError("--inception measures the distance to real pictures; give a folder of them with --real")
        weights = inception.with_name(f"{inception.name}.pdiparams")
        if not weights.is_file():
            raise UserError(
                f"--inception {args.inception} needs {weights}, which is not there; give a network that "
                "paddle.jit.save wrote"
            )
    if args.real is not None:
        if not networks.wanted:
            raise UserError("--real needs a network whose features are compared; give one with --clip or --inception")
        if not args.real.is_dir():
            raise UserError(f"--real {args.real} is no folder; give one with real pictures")
    return networks


def _prompts(args: argparse.Namespace, settings: Settings) -> list[str]:
    """Every prompt once: those named, those of a file, and held-out ones of the bundled model."""
    found = list(args.prompt or [])
    if args.prompts is not None:
        try:
            lines = args.prompts.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise UserError(
                f"--prompts {args.prompts} cannot be read ({error}); give a text file with one prompt a line"
            ) from error
        named = [line.strip() for line in lines if line.strip()]
        if not named:
            raise UserError(f"--prompts {args.prompts} holds no prompt; write one a line")
        found += named
    count = args.held_out
    if count is None and not found and settings.model.bundled:
        count = HELD_OUT
    if count is not None:
        if count < 1 or not settings.model.bundled:
            raise UserError(f"--held-out {count} must be 1 or more, and is for the bundled model")
        from ppdiffusers_tome.tools.bundled.scenes import held_out_scenes

        found += [scene.prompt for scene in held_out_scenes(count)]
    return check_prompts(list(dict.fromkeys(found)))


def _evaluate(
    settings: Settings,
    configurations: Sequence[Configuration],
    turns: Sequence[Turn],
    networks: Networks,
    hall: Hall,
    *,
    overwrite: bool,
) -> None:
    from ppdiffusers_tome.tools.drawing.studio import open_studio
    from ppdiffusers_tome.tools.evaluation.block_clock import merging_levels
    from ppdiffusers_tome.tools.evaluation.scores import Scoring
    from ppdiffusers_tome.tools.many_prompts.ranks import Ranks

    ranks = Ranks.from_environment()
    prompts = list(dict.fromkeys(turn.prompt for turn in turns))
    scoring = None
    if networks.wanted and ranks.is_first:  # before anything is drawn: one that does not fit is told at once
        scoring = Scoring(networks.clip, networks.inception, networks.real, len(turns))
    studio = open_studio(settings, prompts)
    _check_port(configurations, studio)
    described = studio.describe_run()
    versions = described.pop("versions")
    run = {**described, "negative_prompt": settings.negative_prompt}
    ranks.join()
    with _ledger(ranks, hall.folder / "evaluate.jsonl", run, versions, configurations, overwrite=overwrite) as ledger:
        drawn = _draw(settings, studio, configurations, ranks.share(turns), ledger, hall)
        if not ranks.is_first:
            ledger.close()  # rank 0 is going to take the part into the file
        ranks.total([drawn], "all is drawn")
        ranks.leave()
        if not ranks.is_first:
            return
        ledger.gather()
        tomes = [configuration.tome for configuration in configurations if configuration.tome is not None]
        levels = merging_levels(studio.pipe, tomes)
        run = {**run, "prompts": prompts, "seeds": list(dict.fromkeys(turn.seed for turn in turns))}
        scores = scoring.scores([each.name for each in configurations], turns, hall) if scoring else {}
        _write(configurations, turns, levels, ledger, scores, run, hall.folder)


def _draw(
    settings: Settings, studio: Studio, configurations: Sequence[Configuration], turns: Sequence[Turn],
    ledger: EvaluationLedger, hall: Hall,
) -> int:  # fmt: skip
    """Draw what is left of this rank's turns; returns how many pictures that were."""
    from tqdm import tqdm

    from ppdiffusers_tome.tools.evaluation.turns import Evaluation

    with tqdm(desc="pictures", position=0, disable=None) as bar:

        def tell(text: str) -> None:
            bar.set_postfix_str(text, refresh=False)
            bar.update()

        evaluation = Evaluation(
            studio.pipe, lambda turn, steps: studio.draw(turn.prompt, turn.seed, None, steps=steps), configurations,
            turns, ledger, hall, _judge(settings), tell,
        )  # fmt: skip
        bar.total = number = evaluation.num_pictures
        evaluation.run()
    return number


def _ledger(
    ranks: Ranks, path: Path, run: dict[str, Any], versions: dict[str, str], configurations: Sequence[Configuration],
    *, overwrite: bool,
) -> EvaluationLedger:  # fmt: skip
    """The file of what was drawn, which rank 0 writes and every other rank a part of.

    Rank 0 puts it in order, then the others read it, and only when all have read does anyone write.
    """
    from ppdiffusers_tome.tools.bench.overhead import measured_on
    from ppdiffusers_tome.tools.drawing.studio import device_name
    from ppdiffusers_tome.tools.evaluation.ledger import EvaluationLedger
    from ppdiffusers_tome.tools.measuring.measure import memory_meaning

    if not ranks.is_first:
        ranks.total([0], "the ledger is in order")
    ledger = EvaluationLedger(path, run, overwrite=overwrite and ranks.is_first, rank=ranks.rank)
    try:
        ledger.note_machine({**measured_on(), **versions, "device": device_name(), "memory": memory_meaning()})
        ledger.note_configurations(configurations)
        if ranks.is_first:
            ranks.total([0], "the ledger is in order")
        ranks.total([0], "all have read the ledger")
    except BaseException:
        ledger.close()
        raise
    return ledger


def _check_port(configurations: Sequence[Configuration], studio: Studio) -> None:
    """The port can run at this size."""
    for configuration in configurations:
        level = configuration.tome.max_downsample if configuration.contender == PORT and configuration.tome else None
        multiple = _PORT_MULTIPLE * (level or 1)
        for name, pixels in (("height", studio.height), ("width", studio.width)):
            if level is not None and level > 1 and pixels % multiple:
                raise UserError(
                    f"--{name} {pixels} must be a multiple of {multiple} for {configuration.name!r}: down to level "
                    f"{level} the port fails where cells of 2x2 tokens are not whole"
                )


def _judge(settings: Settings) -> Any:
    """Whether a picture shows what a prompt asks, where the checker can tell: the bundled model's scenes."""
    from ppdiffusers_tome.tools.bundled.checker import check
    from ppdiffusers_tome.tools.bundled.scenes import parse_prompt

    def judge(picture: np.ndarray, prompt: str) -> bool | None:
        try:
            scene = parse_prompt(prompt)
        except ValueError:
            return None
        return check(picture, scene).obeys

    return judge if settings.model.bundled else lambda picture, prompt: None


def _write(
    configurations: Sequence[Configuration],
    turns: Sequence[Turn],
    levels: Sequence[int],
    ledger: EvaluationLedger,
    scores: dict[str, dict[str, float]],
    run: dict[str, Any],
    folder: Path,
) -> None:
    from ppdiffusers_tome.exporting.files import write_whole
    from ppdiffusers_tome.tools.console.output import say
    from ppdiffusers_tome.tools.drawing.picture_files import write_picture
    from ppdiffusers_tome.tools.evaluation.plot import plot
    from ppdiffusers_tome.tools.evaluation.summary import as_json, markdown, notes, rows

    title, on = "Fidelity and speed of token merging", ledger.on
    found = rows(configurations, turns, levels, ledger, scores)
    words = notes(run, on, len(turns), levels, scores)
    table = markdown(title, words, found)
    text = json.dumps(as_json(run, on, levels, found), indent=2, allow_nan=False) + "\n"
    paths = [folder / f"evaluate.{end}" for end in ENDS]
    # Whatever is in the way was refused before anything was drawn.
    write_whole(paths[0], lambda file: file.write(table.encode()), overwrite=True)
    write_whole(paths[1], lambda file: file.write(text.encode()), overwrite=True)
    write_picture(paths[2], plot(title, f"{words[0]}; {words[1]}", found), {"run": run, "on": on}, overwrite=True)
    say(table)
    for path in paths:
        say(str(path))

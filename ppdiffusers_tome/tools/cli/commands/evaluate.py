"""``ppdiffusers-tome evaluate``: cases by configurations, in seconds, memory and similarity; a stopped run resumes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import ToMeValueError, UserError
from ppdiffusers_tome.settings.text_files import read_text
from ppdiffusers_tome.tools.cli.arguments import add_image_arguments, add_output_arguments, add_tome_arguments
from ppdiffusers_tome.tools.evaluate.configurations import Configuration, distinct, from_files, from_suite, ours, port
from ppdiffusers_tome.tools.generation.class_labels import select_prompts
from ppdiffusers_tome.tools.generation.settings import (
    Settings,
    check_prompts,
    check_seed,
    get_tome_overrides,
    parse_settings,
)

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.batch.ranks import Ranks
    from ppdiffusers_tome.tools.evaluate.image_store import PictureStore
    from ppdiffusers_tome.tools.evaluate.ledger import EvaluationLedger
    from ppdiffusers_tome.tools.evaluate.runner import Evaluation
    from ppdiffusers_tome.tools.evaluate.samples import Case
    from ppdiffusers_tome.tools.evaluate.scores import Networks

HELP = "Draw many prompts with many settings; measure speed, memory and similarity, and plot one against the other."
EXAMPLES = """writes evaluate.md, evaluate.json and evaluate.png (similarity against speed-up), the unmerged pictures in
references/, and evaluate.jsonl picture by picture: stopped, the same command resumes where it was, and one with more
prompts, seeds or configurations adds to what is there.

a suite is a file with one configuration per line; besides the settings it may name a family, a line of the plot:
  {"name": "port 0.5", "contender": "port", "ratio": 0.5}
  {"name": "tiles 0.5", "family": "tiles", "ratio": 0.5, "tile": 16}

examples:
  ppdiffusers-tome evaluate --ratios 0.3 0.5 0.7 --port-ratios 0.3 0.5 0.7 --seeds 0 1
  ppdiffusers-tome evaluate --configs fast.json careful.json --prompt "a photo of a motorcycle"
  ppdiffusers-tome evaluate --model runwayml/stable-diffusion-v1-5 --dtype float16 --prompts prompts.txt --seeds 0 1 \\
      --ratios 0.3 0.5 --clip clip-vit-large-patch14 --real photos
"""

RATIOS = (0.25, 0.5, 0.7)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_image_arguments(parser, several_seeds=True)
    group = parser.add_argument_group("more prompts")
    group.add_argument("--prompts", type=Path, metavar="FILE",
                       help="one prompt per line (default without any prompt, for bundled models: all that they draw)")
    group = parser.add_argument_group("what is compared with the unmerged pipeline")
    group.add_argument("--ratios", type=float, nargs="*", metavar="X",
                       help="shares of the tokens to merge, with the settings below (default where nothing else is "
                       f"compared: {' '.join(map(str, RATIOS))})")
    group.add_argument("--port-ratios", type=float, nargs="+", default=[], metavar="X",
                       help="the same for ppdiffusers' own port of tomesd")
    group.add_argument("--configs", nargs="+", default=[], metavar="FILE",
                       help="presets, or JSON files of settings as ToMeConfig.save writes them; called by their names")
    group.add_argument("--suite", type=Path, nargs="+", default=[], metavar="FILE",
                       help="files with one configuration per line, see below")
    add_tome_arguments(parser)
    group = parser.add_argument_group("scores of networks (nothing is ever downloaded)")
    group.add_argument("--clip", type=Path, metavar="FOLDER", help="a CLIPModel of paddlenlp with its processor")
    group.add_argument("--inception", type=Path, metavar="FILE",
                       help="FID's Inception network, saved with paddle.jit.save; see docs/en/guides/evaluate.md")
    group.add_argument("--real", type=Path, metavar="FOLDER", help="real pictures, for the Frechet distance to them")
    add_output_arguments(parser)
    parser.add_argument("--save-images", action="store_true", help="keep all pictures, not the unmerged ones alone")
    # Text to image alone; the seed of a picture is one of --seeds.
    parser.set_defaults(
        seed=0, controlnet=None, image=None, control_image=None, canny_low=100, canny_high=200, controlnet_scale=1.0
    )


def run(args: argparse.Namespace) -> None:
    settings = parse_settings(args, 0.0)  # each configuration has its own
    configurations = _configurations(args)
    for seed in args.seeds:
        check_seed("--seeds", seed)
    from ppdiffusers_tome.tools.evaluate.image_store import PictureStore
    from ppdiffusers_tome.tools.evaluate.samples import Case
    from ppdiffusers_tome.tools.evaluate.scores import Networks
    from ppdiffusers_tome.tools.files import prepare_folder

    networks = Networks(args.clip, args.inception, args.real)
    networks.check_files()
    cases = [Case(prompt, seed) for prompt in _prompts(args, settings) for seed in dict.fromkeys(args.seeds)]
    store = PictureStore(args.output, args.save_images or bool(networks))
    # The other files are made of the ledger, so where that is ours so are they.
    overwrite = args.overwrite or (args.output / "evaluate.jsonl").is_file()
    paths = prepare_folder(args.output, [f"evaluate.{end}" for end in ("png", "md", "json")], overwrite=overwrite)
    store.prepare(configurations, cases, overwrite=overwrite)
    from ppdiffusers_tome.tools.cli.console.output import quiet_libraries

    with quiet_libraries():
        _evaluate(settings, configurations, cases, networks, store, paths, overwrite=args.overwrite)


def _configurations(args: argparse.Namespace) -> list[Configuration]:
    """The unmerged pipeline, and all that is compared with it."""
    ratios = args.ratios
    if ratios is None:
        ratios = [] if args.port_ratios or args.configs or args.suite else RATIOS
    compared = [ours(parse_settings(args, ratio).tome) for ratio in ratios]
    compared += [port(ratio, get_tome_overrides(args).get("max_downsample")) for ratio in args.port_ratios]
    compared += from_files(args.configs)
    compared += [each for path in args.suite for each in from_suite(path)]
    return distinct(compared, suite=True)


def _prompts(args: argparse.Namespace, settings: Settings) -> list[str]:
    """Every prompt once: those named, those of a file; of a bundled model without either all that it draws."""
    prompts = list(args.prompt or [])
    if args.prompts is not None:
        try:
            lines = read_text(args.prompts).split("\n")
        except ToMeValueError as error:
            raise UserError(f"--prompts {error}; give a text file with one prompt per line") from error
        if not any(map(str.strip, lines)):
            raise UserError(f"--prompts {args.prompts} holds no prompt; write one per line")
        prompts += [line.strip() for line in lines if line.strip()]
    labels = settings.model.labels
    if not prompts and settings.model.bundled:
        from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS, prompt_of

        prompts = [prompt_of(subject) for subject in SUBJECTS] if labels is None else labels.list_names()
    return select_prompts(labels, check_prompts(list(dict.fromkeys(prompts))), ())


def _evaluate(
    settings: Settings, configurations: Sequence[Configuration], cases: Sequence[Case], networks: Networks,
    store: PictureStore, paths: Sequence[Path], *, overwrite: bool,
) -> None:  # fmt: skip
    from ppdiffusers_tome.tools.batch.ranks import Ranks
    from ppdiffusers_tome.tools.demo_model.recognition import shows_subject
    from ppdiffusers_tome.tools.evaluate.block_clock import merging_levels
    from ppdiffusers_tome.tools.evaluate.runner import Evaluation
    from ppdiffusers_tome.tools.generation.loaded_pipeline import load_for_prompts

    ranks = Ranks.from_environment()
    prompts = list(dict.fromkeys(case.prompt for case in cases))
    if networks and ranks.is_first:  # before anything is drawn, so that one that does not fit is refused at once
        networks.try_out(len(cases))
    loaded, _ = load_for_prompts(settings, prompts)
    for configuration in configurations:
        configuration.check_size(loaded.height, loaded.width)
    run = {**loaded.describe_run(), "negative_prompt": settings.negative_prompt}
    versions = run.pop("versions")
    with _ledger(ranks, store.folder / "evaluate.jsonl", run, versions, configurations, overwrite=overwrite) as ledger:
        evaluation = Evaluation(
            loaded.pipe, lambda case, steps: loaded.generate(case.prompt, case.seed, None, steps=steps), configurations,
            ranks.shard(cases), ledger, store,
            shows_subject if settings.model.bundled else lambda *_: None,
        )  # fmt: skip
        _draw(evaluation)
        if not ranks.is_first:
            ledger.close()  # rank 0 is going to take the part into the file
        ranks.exchange(None, "everything is generated")
        ranks.leave()
        if ranks.is_first:
            ledger.gather()
            levels = merging_levels(loaded.pipe, [each.tome for each in configurations if each.tome is not None])
            scores = networks.scores([each.name for each in configurations], cases, store)
            run |= {"prompts": prompts, "seeds": list(dict.fromkeys(case.seed for case in cases))}
            _write(configurations, cases, levels, ledger, scores, run, paths)


def _draw(evaluation: Evaluation) -> None:
    """Draw what is left, behind a progress bar."""
    from tqdm import tqdm

    with tqdm(desc="pictures", total=evaluation.num_pictures, position=0, disable=None) as bar:

        def progress(text: str) -> None:
            bar.set_postfix_str(text, refresh=False)
            bar.update()

        evaluation.run(progress)


def _ledger(
    ranks: Ranks, path: Path, run: dict[str, Any], versions: dict[str, str], configurations: Sequence[Configuration],
    *, overwrite: bool,
) -> EvaluationLedger:  # fmt: skip
    """The file of what was drawn, which rank 0 writes and every other rank a part of.

    Rank 0 puts it in order, then the others read it, and only when all have read does anyone write.
    """
    from ppdiffusers_tome.tools.evaluate.ledger import EvaluationLedger
    from ppdiffusers_tome.tools.generation.device import get_device_name
    from ppdiffusers_tome.tools.measure.memory import explain_peak
    from ppdiffusers_tome.tools.measure.system import describe_machine

    if not ranks.is_first:
        ranks.exchange(None, "the ledger is in order")
    ledger = EvaluationLedger(path, run, overwrite=overwrite and ranks.is_first, rank=ranks.rank)
    try:
        ledger.note_machine({**describe_machine(), **versions, "device": get_device_name(), "memory": explain_peak()})
        ledger.note_configurations(configurations)
        if ranks.is_first:
            ranks.exchange(None, "the ledger is in order")
        ranks.exchange(None, "all have read the ledger")
    except BaseException:
        ledger.close()
        raise
    return ledger


def _write(
    configurations: Sequence[Configuration], cases: Sequence[Case], levels: Sequence[int], ledger: EvaluationLedger,
    scores: dict[str, dict[str, float]], run: dict[str, Any], paths: Sequence[Path],
) -> None:  # fmt: skip
    from ppdiffusers_tome.tools.evaluate.plot import plot
    from ppdiffusers_tome.tools.evaluate.summary import notes, rows, write_table
    from ppdiffusers_tome.tools.images import write_image

    title, other = "Fidelity and speed of token merging", {"run": run, "on": ledger.on}
    drawn = {each.name: ledger.samples(each.name) for each in configurations}
    samples = {name: [own[case] for case in cases] for name, own in drawn.items()}
    found = rows(configurations, samples, ledger.unmerged, levels, scores)
    lines = notes(run, ledger.on, found, levels)
    # Whatever is in the way was refused before anything was drawn.
    write_image(paths[0], plot(title, f"{lines[0]}; {lines[1]}", found), other, overwrite=True)
    write_table(paths, title, lines, found, {**other, "levels": levels}, overwrite=True)

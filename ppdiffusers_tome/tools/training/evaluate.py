"""Whether the bundled models draw what they are asked for, with and without token merging.

    python -m ppdiffusers_tome.tools.training.evaluate --output outputs/bundled
    python -m ppdiffusers_tome.tools.training.evaluate --output outputs/bundled --controlnet
    python -m ppdiffusers_tome.tools.training.evaluate --output outputs/bundled-dit --model bundled-dit

Every picture is judged by the photograph that it is most like (``bundled.recognition``): whether that is the one which
its prompt names, and, as a check of the judge, whether it is the one which another picture's prompt names.

With ``--controlnet`` the edges are those of a held-out view. Reported are the share of them that the picture has an
edge near of, and the same share for the edges of another subject's view. Views are alike, so a picture that words alone
have made follows most edges of any view of its subject: ``--unprompted`` leaves the words out, and nothing but the
edges tells what to draw.

A line a picture goes to a file in the output; started again with the same models, steps and guidance, the command goes
on where it stopped, perhaps with more pictures or ratios. The summary is printed as a Markdown table.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from ppdiffusers_tome.api import apply_tome, remove_tome
from ppdiffusers_tome.cpu.chunked_attention import enable_chunked_attention
from ppdiffusers_tome.cpu.process import keep_freed_memory, let_mkl_use_avx2
from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS, WIDTH, Subject, draw, held_out_views, prompt_of
from ppdiffusers_tome.tools.demo_model.recognition import edges_followed, nearest_subject
from ppdiffusers_tome.tools.generation import sampling
from ppdiffusers_tome.tools.generation.edges import detect_edges
from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
from ppdiffusers_tome.tools.generation.model_sources import BUNDLED, ModelSource, find_controlnet, find_model
from ppdiffusers_tome.tools.generation.settings import choose_guidance_scale
from ppdiffusers_tome.tools.measure.lines_ledger import Ledger


def subject_of_picture(number: int, *, shuffled: bool = False) -> Subject:
    """The subject that picture ``number`` is asked to show; or, never the same, that another one is."""
    moved = 1 + number // len(SUBJECTS) % (len(SUBJECTS) - 1) if shuffled else 0
    return SUBJECTS[(number + moved) % len(SUBJECTS)]


def view_edges(number: int) -> Image.Image:
    """The edges of a view of picture ``number``'s subject, white on black."""
    view = held_out_views(number + 1, WIDTH)[number]
    return detect_edges((draw(subject_of_picture(number), view) * 255).round().astype(np.uint8))


def judged(picture: np.ndarray, number: int, *, controlled: bool) -> dict[str, Any]:
    """What is written down of a picture, uint8 ``[512, 512, 3]``; of its edges where those were asked for."""
    nearest = nearest_subject(picture)
    found: dict[str, Any] = {
        "nearest": None if nearest is None else nearest.name,
        "recognised": nearest is subject_of_picture(number),
        "by another's prompt": nearest is subject_of_picture(number, shuffled=True),
    }
    if controlled:
        asked = {"edges followed": view_edges(number), "another subject's": view_edges(number + 1)}
        seen = np.asarray(detect_edges(picture))[..., 0]
        found |= {name: edges_followed(np.asarray(edges)[..., 0], seen) for name, edges in asked.items()}
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """The means by ratio, in Markdown."""
    by_ratio = defaultdict(list)
    for row in rows:
        by_ratio[row["ratio"]].append(row)
    names = [name for name, value in rows[0].items() if isinstance(value, float | bool) and name != "ratio"]
    lines = [f"| ratio | pictures | {' | '.join(names)} |", f"|{'---|' * (len(names) + 2)}"]
    for ratio, group in sorted(by_ratio.items()):
        means = " | ".join(f"{np.mean([row[name] for row in group]):.3f}" for name in names)
        lines.append(f"| {ratio} | {len(group)} | {means} |")
    return "\n".join(lines)


def checksum(source: ModelSource) -> str | None:
    """Of all files of a model, which another training leaves under the same name; None for one of a hub."""
    if source.folder is None:
        return None
    sums = hashlib.sha256()
    for path in sorted(path for path in source.folder.rglob("*") if path.is_file()):
        sums.update(f"{path.relative_to(source.folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return sums.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", default=BUNDLED, help="bundled, bundled-dit or a folder")
    parser.add_argument("--count", type=int, default=60, help="pictures, of the subjects in turn, each with a new seed")
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--guidance-scale", type=float, help="default: as ppdiffusers-tome generate has it")
    parser.add_argument("--controlnet", action="store_true")
    parser.add_argument("--unprompted", action="store_true", help="leave the words out; needs --controlnet")
    parser.add_argument("--overwrite", action="store_true", help="start over, whatever is there")
    args = parser.parse_args()
    if args.unprompted and not args.controlnet:
        parser.error("--unprompted leaves nothing to draw; add --controlnet")
    let_mkl_use_avx2()
    keep_freed_memory()
    args.output.mkdir(parents=True, exist_ok=True)
    model = find_model(args.model, class_labels=True)
    controlnet = find_controlnet(BUNDLED) if args.controlnet else None
    guidance_scale = choose_guidance_scale(model, model.labels) if args.guidance_scale is None else args.guidance_scale
    pipe = load_pipeline(model, controlnet, class_labels=True)
    pipe.set_progress_bar_config(disable=True)
    enable_chunked_attention(pipe)  # the same pictures to rounding, in half the time on a CPU
    height, width = sampling.get_native_size(pipe)
    kind = "unprompted" if args.unprompted else "controlled" if args.controlnet else "pictures"
    identity = {
        "models": [[each.name, checksum(each)] for each in (model, controlnet) if each is not None],
        "steps": args.steps, "guidance scale": guidance_scale,
    }  # fmt: skip
    with Ledger(args.output / f"{kind}.jsonl", identity, overwrite=args.overwrite) as ledger:
        work = [(number, ratio) for number in range(args.count) for ratio in args.ratios]
        done = {(row["number"], row["ratio"]) for row in ledger.lines if "number" in row}
        for number, ratio in tqdm([each for each in work if each not in done]):
            if ratio == 0:
                remove_tome(pipe)
            else:
                apply_tome(pipe, ratio)
            prompt = "" if args.unprompted else prompt_of(subject_of_picture(number))
            picture = sampling.generate_image(
                pipe, prompt, height=height, width=width, seed=number, steps=args.steps,
                guidance_scale=guidance_scale, edges=view_edges(number) if args.controlnet else None,
            )  # fmt: skip
            picture.save(args.output / f"{kind}-{number:03d}-{ratio:g}.png")
            found = judged(np.asarray(picture), number, controlled=args.controlnet)
            ledger.add({"number": number, "prompt": prompt, "ratio": ratio, **found})
    print(table([row for row in ledger.lines if (row.get("number"), row.get("ratio")) in work]))


if __name__ == "__main__":
    main()

"""Measure whether the small models' images show their prompts, unmerged and merged.

    python examples/train_demo_models/evaluate.py --output outputs/photographs
    python examples/train_demo_models/evaluate.py --output outputs/photographs --controlnet
    python examples/train_demo_models/evaluate.py --output outputs/dit --model dit

For every image the most similar photograph is found (``recognition.py``). The table says how often that is the one of
its prompt and, as a control, how often it is the one of another image's prompt.

With ``--controlnet`` the edges are those of a held-out view. The table says which fraction of them the image follows
and, as a control, which fraction of the edges of another subject's view. Views are similar, so an image generated from
words alone follows most edges of any view of its subject; ``--unprompted`` removes the words.

It runs under Paddle, prints a Markdown table of means, and writes the images and a line of JSON for each.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import paddle
from photographs import SUBJECTS, Subject, prompt_of
from PIL import Image
from recognition import nearest_subject
from tqdm import tqdm
from views import WIDTH, make_held_out_views, render_view

from ppdiffusers_tome.api import apply_tome, remove_tome
from ppdiffusers_tome.compilation.api import compile_cpu
from ppdiffusers_tome.tools.generation.loading import load_pipeline
from ppdiffusers_tome.tools.generation.models import PHOTOGRAPHS, find_controlnet, find_model
from ppdiffusers_tome.tools.generation.sampling import generate_image, get_native_size

EDGE_TOLERANCE = 6  # pixels of 512


def get_image_subject(number: int, *, shuffled: bool = False) -> Subject:
    """Return the subject of image ``number``, or with ``shuffled`` a different one."""
    offset = 1 + number // len(SUBJECTS) % (len(SUBJECTS) - 1) if shuffled else 0
    return SUBJECTS[(number + offset) % len(SUBJECTS)]


def find_edges(image: np.ndarray) -> np.ndarray:
    """Return Canny edges by ``generate``'s thresholds, uint8 ``[height, width]``, 255 on edges."""
    return cv2.Canny(image, 100, 200)


def make_view_edges(number: int) -> np.ndarray:
    """Return the edges of a held-out view of image ``number``'s subject."""
    view = make_held_out_views(number + 1, WIDTH)[number]
    return find_edges((render_view(get_image_subject(number), view) * 255).round().astype(np.uint8))


def compute_follow_rate(edges: np.ndarray, image_edges: np.ndarray) -> float:
    """Return the fraction of edge pixels within ``EDGE_TOLERANCE`` of the image's edges."""
    distance = cv2.distanceTransform((image_edges == 0).astype(np.uint8), cv2.DIST_L2, 5)
    return float((distance[edges > 0] <= EDGE_TOLERANCE).mean())


def judge_image(image: np.ndarray, number: int, *, with_edges: bool) -> dict[str, Any]:
    """Compare an image, uint8 ``[512, 512, 3]``, with its prompt and another image's."""
    nearest = nearest_subject(image)
    verdict: dict[str, Any] = {
        "nearest": None if nearest is None else nearest.name,
        "recognised": nearest is get_image_subject(number),
        "by another's prompt": nearest is get_image_subject(number, shuffled=True),
    }
    if with_edges:
        edges = find_edges(image)
        verdict["edges followed"] = compute_follow_rate(make_view_edges(number), edges)
        verdict["another subject's"] = compute_follow_rate(make_view_edges(number + 1), edges)
    return verdict


def format_table(rows: list[dict[str, Any]]) -> str:
    """Format the means by ratio as a Markdown table."""
    by_ratio = defaultdict(list)
    for row in rows:
        by_ratio[row["ratio"]].append(row)
    names = [name for name, value in rows[0].items() if isinstance(value, float | bool) and name != "ratio"]
    lines = [f"| ratio | images | {' | '.join(names)} |", f"|{'---|' * (len(names) + 2)}"]
    for ratio, group in sorted(by_ratio.items()):
        means = " | ".join(f"{np.mean([row[name] for row in group]):.3f}" for name in names)
        lines.append(f"| {ratio} | {len(group)} | {means} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", default=PHOTOGRAPHS, help="photographs, dit or a folder")
    parser.add_argument("--count", type=int, default=60, help="images, of the subjects in turn, each with a new seed")
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--guidance-scale", type=float, default=1.5)
    parser.add_argument("--controlnet", action="store_true")
    parser.add_argument("--unprompted", action="store_true", help="omit the words; needs --controlnet")
    args = parser.parse_args()
    if args.unprompted and not args.controlnet:
        parser.error("--unprompted leaves nothing to generate; add --controlnet")
    args.output.mkdir(parents=True, exist_ok=True)
    controlnet = find_controlnet("controlnet") if args.controlnet else None
    pipe = load_pipeline(find_model(args.model), controlnet)
    pipe.set_progress_bar_config(disable=True)
    if paddle.get_device() == "cpu":
        compile_cpu(pipe, "float32")  # the same images except for rounding, in half the time
    height, width = get_native_size(pipe)
    kind = "unprompted" if args.unprompted else "controlled" if args.controlnet else "images"
    rows = []
    with (args.output / f"{kind}.jsonl").open("w") as file:
        for number, ratio in tqdm([(number, ratio) for number in range(args.count) for ratio in args.ratios]):
            if ratio == 0:
                remove_tome(pipe)
            else:
                apply_tome(pipe, ratio)
            subject = get_image_subject(number)
            prompt = "" if args.unprompted else subject.name if hasattr(pipe, "labels") else prompt_of(subject)
            edges = Image.fromarray(make_view_edges(number)).convert("RGB") if args.controlnet else None
            image = generate_image(
                pipe, prompt, height=height, width=width, seed=number, steps=args.steps,
                guidance_scale=args.guidance_scale, edges=edges,
            )  # fmt: skip
            image.save(args.output / f"{kind}-{number:03d}-{ratio:g}.png")
            verdict = judge_image(np.asarray(image), number, with_edges=args.controlnet)
            rows.append({"number": number, "prompt": prompt, "ratio": ratio, **verdict})
            file.write(json.dumps(rows[-1]) + "\n")
    print(format_table(rows))


if __name__ == "__main__":
    main()

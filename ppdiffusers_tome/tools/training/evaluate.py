"""Prompt adherence of the bundled model: held-out prompts, with and without token merging, judged by the checker.

    python -m ppdiffusers_tome.tools.training.evaluate --output outputs/evaluation
    python -m ppdiffusers_tome.tools.training.evaluate --output outputs/evaluation --controlnet --count 20

One JSON line a picture goes to ``pictures.jsonl``; started again, it goes on where it stopped. The summary is
printed as a Markdown table. With ``--controlnet`` the edges of a drawing are given and the share of them that the
picture follows is reported, beside the same share for another drawing's edges.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import paddle
from ppdiffusers import ControlNetModel, StableDiffusionControlNetPipeline, StableDiffusionPipeline
from tqdm import tqdm

from ppdiffusers_tome.cpu.chunked_attention import enable_chunked_attention
from ppdiffusers_tome.tools.bundled import CONTROLNET, MODEL, checker, scenes
from ppdiffusers_tome.tools.drawing.edges import canny
from ppdiffusers_tome.tools.measuring.json_lines import Writer, read_lines

TOLERANCE = 6  # pixels of 512 by which an edge may miss


def edges_of(picture: np.ndarray) -> np.ndarray:
    """Canny edges of a uint8 RGB picture, as ``ppdiffusers-tome generate`` makes them."""
    return np.asarray(canny(picture))[..., 0]


def overlap(asked: np.ndarray, seen: np.ndarray) -> float:
    """The share of asked edge pixels that have a seen edge within ``TOLERANCE`` pixels."""
    distance = cv2.distanceTransform((seen == 0).astype(np.uint8), cv2.DIST_L2, 5)
    return float((distance[asked > 0] <= TOLERANCE).mean())


def load(controlnet: bool) -> StableDiffusionPipeline:
    if not controlnet:
        pipe = StableDiffusionPipeline.from_pretrained(str(MODEL))
    else:
        pipe = StableDiffusionControlNetPipeline.from_pretrained(
            str(MODEL), controlnet=ControlNetModel.from_pretrained(str(CONTROLNET))
        )
    pipe.set_progress_bar_config(disable=True)
    return enable_chunked_attention(pipe)  # the same pictures to rounding, in half the time on a CPU


def drawing(scene: scenes.Scene, seed: int) -> np.ndarray:
    """The scene's shapes at places that the words do not tell, as a uint8 RGB picture."""
    rng = np.random.default_rng(seed)
    moved = tuple(
        replace(s, x=s.x + rng.uniform(-0.05, 0.05), y=s.y + rng.uniform(-0.05, 0.05)) for s in scene.shapes
    )
    return (scenes.render(replace(scene, shapes=moved), 512) * 255).astype(np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--guidance-scale", type=float, default=3.0)
    parser.add_argument("--controlnet", action="store_true")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    file = args.output / ("controlled.jsonl" if args.controlnet else "pictures.jsonl")
    writer = Writer(file)
    rows = read_lines(file)
    done = {(row["prompt"], row["ratio"]) for row in rows}
    pipe = load(args.controlnet)
    asked = scenes.held_out_scenes(args.count)
    drawings = [drawing(scene, seed) for seed, scene in enumerate(asked)]
    work = [(i, scene, ratio) for i, scene in enumerate(asked) for ratio in args.ratios]
    for index, scene, ratio in tqdm(work):
        if (scene.prompt, ratio) in done:
            continue
        pipe.apply_tome(ratio=ratio)
        paddle.seed(index)
        edges = edges_of(drawings[index])
        given = {"image": paddle.to_tensor(np.repeat(edges[None, None], 3, axis=1).astype("float32") / 255)}
        result = pipe(
            scene.prompt, height=512, width=512, num_inference_steps=args.steps, guidance_scale=args.guidance_scale,
            **(given if args.controlnet else {}),
        )
        picture = np.asarray(result.images[0])
        verdict = checker.check(picture, scene)
        row = {"prompt": scene.prompt, "ratio": ratio, "steps": args.steps}
        row |= {name: getattr(verdict, name) for name in ("colours", "shapes", "relation", "background")}
        if args.controlnet:
            seen = edges_of(cv2.GaussianBlur(picture, (0, 0), 1.5))
            row["overlap"] = overlap(edges, seen)
            row["overlap_with_another"] = overlap(edges_of(drawings[index - 1]), seen)
        result.images[0].save(args.output / f"{index:03d}-{ratio}{'-controlled' if args.controlnet else ''}.png")
        writer.add(row)
        rows.append(row)
    writer.close()
    summary = defaultdict(list)
    for row in rows:
        summary[row["ratio"]].append(row)
    names = [name for name in rows[0] if name not in ("prompt", "ratio", "steps")]
    print(f"| ratio | pictures | {' | '.join(names)} |\n|{'---|' * (len(names) + 2)}")
    for ratio, group in sorted(summary.items()):
        means = " | ".join(f"{np.mean([row[name] for row in group]):.3f}" for name in names)
        print(f"| {ratio} | {len(group)} | {means} |")


if __name__ == "__main__":
    main()

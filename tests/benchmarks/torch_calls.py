"""Time a UNet's call in PyTorch on a GPU, unmerged and merged.

    python tests/benchmarks/torch_calls.py --output docs/measured/gpu/h200.csv

It needs torch, diffusers and tomesd, and no Paddle. Half precision and random weights in the shapes of Stable Diffusion
1.5 and SDXL, two rows as guidance has them. The settings take turns after a warm-up. Each is timed as it runs
(``eager``) and, where it can be recorded, as a CUDA graph, in which no kernel waits for Python: median, lowest and
highest milliseconds. Peak memory is that of the call alone, without weights.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from torch_merging import BALANCED, QUALITY, TOME, UNMERGED, Setting, apply_setting

CONFIGS: dict[str, dict[str, Any]] = {
    "sd15": {
        "sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8,
        "block_out_channels": (320, 640, 1280, 1280),
    },
    "sdxl": {
        "sample_size": 128, "cross_attention_dim": 2048, "attention_head_dim": (5, 10, 20),
        "block_out_channels": (320, 640, 1280), "transformer_layers_per_block": (1, 2, 10),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), "use_linear_projection": True,
        "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 2816,
    },
}  # fmt: skip
TOMESD = "tomesd"
WAYS = ("eager", "graph")
# A call that the cache over steps skips: the first call of a run is computed, the second skipped.
SKIPPED = Setting("a skipped step of cache=0.2", skipped=frozenset(range(1, 10**6)))
SETTINGS: list[Any] = [UNMERGED, TOMESD, TOME, QUALITY, BALANCED, SKIPPED]


@contextmanager
def prepare(unet: Any, setting: Any, model: str) -> Any:
    """Apply a setting, or tomesd at its ratio and finest level."""
    if setting == TOMESD:
        import tomesd

        tomesd.apply_patch(unet, ratio=TOME.ratio, max_downsample={"sd15": 1, "sdxl": 2}[model])
        try:
            yield
        finally:
            tomesd.remove_patch(unet)
    else:
        with apply_setting(unet, setting):
            yield


def time_runs(run: Callable[[], Any], rounds: int) -> list[float]:
    """Return milliseconds of each round."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return times


def record_graph(run: Callable[[], Any]) -> Callable[[], None] | None:
    """Record a call as a CUDA graph; None where it cannot be."""
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        graph.replay()
        torch.cuda.synchronize()
    except Exception as error:
        print(f"  no graph: {str(error).splitlines()[0][:90]}", flush=True)
        torch.cuda.synchronize()
        return None
    return graph.replay


@torch.no_grad()
def measure(unet: Any, model: str, pixels: int, attention: str, rounds: int, budget: float) -> list[dict[str, Any]]:
    """Measure each setting at one size."""
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0

    unet.set_attn_processor(AttnProcessor() if attention == "plain" else AttnProcessor2_0())
    side, kind = pixels // 8, {"dtype": torch.float16, "device": "cuda"}
    latent = torch.randn(2, 4, side, side, **kind)
    text = torch.randn(2, 77, CONFIGS[model]["cross_attention_dim"], **kind)
    timestep = torch.tensor(501, device="cuda")
    added = None
    if model == "sdxl":
        sizes = torch.tensor([[pixels, pixels, 0, 0, pixels, pixels]] * 2, **kind)
        added = {"text_embeds": torch.randn(2, 1280, **kind), "time_ids": sizes}
    times: dict[str, dict[str, list[float]]] = {}
    peaks: dict[str, float] = {}
    failed: dict[str, str] = {}
    started = time.perf_counter()
    repeats = 3
    for number in range(repeats):
        for setting in SETTINGS[:: -1 if number % 2 else 1]:
            name = setting if setting == TOMESD else setting.name
            if name in failed or (number and time.perf_counter() - started > budget):
                continue
            try:
                with prepare(unet, setting, model):

                    def run() -> Any:
                        return unet(latent, timestep, text, added_cond_kwargs=added).sample

                    side_stream = torch.cuda.Stream()
                    side_stream.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(side_stream):
                        for _ in range(3):
                            run()
                    torch.cuda.current_stream().wait_stream(side_stream)
                    torch.cuda.synchronize()
                    if number == 0:
                        torch.cuda.empty_cache()
                        torch.cuda.reset_peak_memory_stats()
                        before = torch.cuda.memory_allocated()
                        run()
                        torch.cuda.synchronize()
                        peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
                    found = times.setdefault(name, {way: [] for way in WAYS})
                    found["eager"] += time_runs(run, rounds)
                    graph = record_graph(run) if attention == "flash" and setting != TOMESD else None
                    if graph is not None:
                        found["graph"] += time_runs(graph, rounds)
                    del graph
            except torch.cuda.OutOfMemoryError:
                failed[name] = "out of memory"
            torch.cuda.empty_cache()
    rows = []
    for name in [each if each == TOMESD else each.name for each in SETTINGS]:
        row = {"model": model, "pixels": pixels, "attention": attention, "setting": name}
        row |= describe_times({} if name in failed else times[name])
        row["peak_mib"] = failed.get(name) or round(peaks[name], 1)
        rows.append(row)
        print(*row.values(), flush=True)
    return rows


def describe_times(times: dict[str, list[float]]) -> dict[str, Any]:
    """Return the columns of milliseconds, empty where a way was not timed."""
    row: dict[str, Any] = {}
    for way in WAYS:
        found = times.get(way)
        row |= {
            f"{way}_{column}_ms": round(take(found), 3) if found else ""
            for column, take in (("median", statistics.median), ("lowest", min), ("highest", max))
        }
    return row


def write_table(path: Path, rows: list[dict[str, Any]], machine: dict[str, str]) -> None:
    """Write the rows, each with the machine."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], *machine], lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | machine for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds-a-case", type=float, default=25)
    args = parser.parse_args()
    for optional in ("transformers", "peft"):  # which diffusers imports where it can, and nothing here needs
        sys.modules[optional] = None  # type: ignore[assignment]
    import diffusers

    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "diffusers": diffusers.__version__}
    print(machine, flush=True)
    rows: list[dict[str, Any]] = []
    cases = [("sd15", "flash", (512, 768, 1024, 1536, 2048)), ("sdxl", "flash", (512, 1024, 1536, 2048)),
             ("sd15", "plain", (512, 768, 1024)), ("sdxl", "plain", (1024,))]  # fmt: skip
    unets: dict[str, Any] = {}
    for model, attention, sizes in cases:
        if model not in unets:
            unets.clear()
            torch.cuda.empty_cache()
            torch.manual_seed(0)
            with torch.device("cuda"):
                unets[model] = diffusers.UNet2DConditionModel(**CONFIGS[model]).half().eval()
        for pixels in sizes:
            rows += measure(unets[model], model, pixels, attention, args.rounds, args.seconds_a_case)
            write_table(args.output, rows, machine)


if __name__ == "__main__":
    main()

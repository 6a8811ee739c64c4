"""Measure a UNet dynamically, as a program and in Paddle Inference.

    PYTHONPATH=tests python -m benchmarks.export
    PYTHONPATH=tests python -m benchmarks.export --model sd15-random --height 768 --width 768 --repeats 5

All run the same UNet on the same input in turns: as it is (dynamic), through paddle.jit.load (program), and through
Paddle Inference with IR optimisation (inference). The script writes export.md and export.json.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.random_models import RANDOM_UNETS, random_model
from benchmarks.timing import Spread, measure_seconds
from benchmarks.turns import take_turns
from ppdiffusers_tome.settings.config import ToMeConfig

DYNAMIC, PROGRAM, INFERENCE = "dynamic", "program", "inference"


def main(argv: Sequence[str] | None = None) -> None:
    parser = pages.parser(__doc__)
    parser.add_argument("--model", choices=list(RANDOM_UNETS), default="sd15-tiny-random", metavar="MODEL")
    for name, default in (("height", 512), ("width", 512), ("rows", 2), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"default: {default}")
    parser.add_argument("--ratio", type=float, default=0.5, metavar="X", help="default: 0.5")
    args = pages.parse(parser, argv, "export")
    settings = {name: getattr(args, name) for name in ("model", "height", "width", "rows", "ratio", "repeats")}
    seconds = _measure(**settings)
    base = seconds[f"unmerged, {DYNAMIC}"]
    rows = [
        (name, Spread.from_values(values), Spread.from_values([a / b for a, b in zip(base, values, strict=True)]))
        for name, values in seconds.items()
    ]
    about = {**settings, **pages.machine()}
    notes = [
        pages.describe(about),
        f"{DYNAMIC}: as it is; {PROGRAM}: paddle.jit.load; {INFERENCE}: Paddle Inference, IR optimisation on",
    ]
    cells = [(name, spread.format("{:.3f}".format), f"{speed_up.median:.2f}x") for name, spread, speed_up in rows]
    text = pages.page(
        "A UNet in dynamic mode and exported", notes, pages.table(["UNet", "seconds of a call", "speed-up"], cells)
    )
    results = [{"name": name, "seconds": asdict(one), "speed_up": asdict(other)} for name, one, other in rows]
    pages.write(args, "export", text, {"run": about, "rows": results, "seconds": seconds})


def _measure(model: str, height: int, width: int, rows: int, ratio: float, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of every timed call, by what ran it."""
    import paddle

    from ppdiffusers_tome import apply_tome
    from ppdiffusers_tome.export.programs import build_denoiser_component

    turns: dict[str, Callable[[], float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("unmerged", "merged"):
            unet = random_model(model)
            if kind == "merged":
                apply_tome(unet, ToMeConfig(ratio))
            component = build_denoiser_component(unet, height=height, width=width, rows=rows)
            component.save(Path(folder) / kind)
            for way, call in _calls(component, Path(folder) / kind).items():
                turns[f"{kind}, {way}"] = partial(measure_seconds, call)
        with paddle.no_grad():
            return take_turns(turns, repeats, progress="rounds")


def _calls(component: Any, folder: Path) -> dict[str, Callable[[], Any]]:
    """Return a function for each way to call the UNet."""
    import paddle

    from ppdiffusers_tome.export.loading import load_program
    from ppdiffusers_tome.export.programs import PROGRAM as FILE

    example = component.make_examples()[0]
    layer = component.layer
    layer.eval()
    loaded = paddle.jit.load(str(folder / component.name / FILE))
    program = load_program(folder / component.name)
    return {
        DYNAMIC: lambda: layer(*example.values()),
        PROGRAM: lambda: loaded(*example.values()),
        INFERENCE: lambda: program(**example),
    }


if __name__ == "__main__":
    pages.prepare()
    main()

"""Train the bundled models with PyTorch and diffusers, which no package here declares: install them yourself.

    python examples/train_demo_models/run_all.py --output runs

A second start resumes where the first one stopped. Each part is a script of this folder with a time budget, and a
folder of its own under the output. What is finished is skipped, what was interrupted resumes from its checkpoint, so
the command is the same after a kill. Once there are latents, the UNet with its ControlNet, the DiT and the decoder are
trained side by side.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import TextIO

from stages import lock

HERE = Path(__file__).parent
MOST_TRIES = 5
Part = tuple[str, list[str]]


def plan(output: Path) -> tuple[list[Part], list[list[Part]]]:
    """What comes first, and then the lines that run side by side; each part a name, a script and its arguments."""
    text, vae, unet, dit, controlnet = (str(output / name) for name in ("text", "vae", "unet", "dit", "controlnet"))
    first = [
        ("text encoder", ["train_text_encoder", "--output", text, "--minutes", "1"]),
        ("encoder", ["train_vae", "--output", vae, "--part", "encoder", "--minutes", "15"]),
    ]
    on_unet = [
        ("unet", ["train_unet", "--text", text, "--vae", vae, "--output", unet]),
        ("controlnet", ["train_controlnet", "--text", text, "--vae", vae, "--unet", unet, "--output", controlnet]),
    ]
    on_labels = [("dit", ["train_dit", "--vae", vae, "--output", dit])]
    on_latents = [("decoder", ["train_vae", "--output", vae, "--part", "decoder", "--minutes", "14"])]
    return first, [on_unet, on_labels, on_latents]


def run_line(line: list[Part], output: Path, log: TextIO) -> bool:
    """Run parts one after another, each with a log of its own; False at the first that fails."""
    return all(run_part(name, command, output, log) for name, command in line)


def run_part(name: str, command: list[str], output: Path, log: TextIO) -> bool:
    """Run a part, and again where it was killed; False where it failed by itself or was killed too often."""
    script, *arguments = command
    # Threads that wait in a loop take the core from those that they wait for, where other programs run too.
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
    for _ in range(MOST_TRIES):
        note(log, f"{name}: {script} {' '.join(arguments)}")
        with (output / f"{name.replace(' ', '-')}.log").open("a") as own:
            code = subprocess.run(
                [sys.executable, str(HERE / f"{script}.py"), *arguments],
                stdout=own, stderr=own, env=environment, check=False,
            ).returncode
        note(log, f"{name}: ended with {code}")
        if code >= 0:
            break
    return code == 0


def note(log: TextIO, words: str) -> None:
    log.write(f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC  {words}\n")
    log.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    lock(args.output)
    log = (args.output / "run.log").open("a")
    first, lines = plan(args.output)
    finished = run_line(first, args.output, log)
    if finished:
        with ThreadPoolExecutor(len(lines)) as pool:
            finished = all(list(pool.map(lambda line: run_line(line, args.output, log), lines)))
    if not finished:
        raise SystemExit(f"not finished; see {args.output / 'run.log'}")


if __name__ == "__main__":
    main()

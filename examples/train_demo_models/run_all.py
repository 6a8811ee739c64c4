"""Train all bundled models with PyTorch and diffusers.

    python examples/train_demo_models/run_all.py --output runs

Install PyTorch and diffusers first (docs/en/results/bundled-model.md); this package does not depend on them. Each part
runs a script of this folder with a time budget, and writes its own folder under the output. After an interruption run
the same command again: finished parts are skipped, the others resume from their checkpoints. When the encoder is
finished, the UNet with its ControlNet, the DiT and the decoder train in parallel.
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

from stages import lock_folder

HERE = Path(__file__).parent
MAX_TRIES = 5
Part = tuple[str, list[str]]  # a name, and the script with its arguments


def plan_parts(output: Path) -> tuple[list[Part], list[list[Part]]]:
    """Return the parts to run first, and the chains to run in parallel afterwards."""
    text, vae, unet, dit, controlnet = (str(output / name) for name in ("text", "vae", "unet", "dit", "controlnet"))
    first = [
        ("text encoder", ["train_text_encoder", "--output", text, "--minutes", "1"]),
        ("encoder", ["train_vae", "--output", vae, "--part", "encoder", "--minutes", "15"]),
    ]
    unet_chain = [
        ("unet", ["train_unet", "--text", text, "--vae", vae, "--output", unet]),
        ("controlnet", ["train_controlnet", "--text", text, "--vae", vae, "--unet", unet, "--output", controlnet]),
    ]
    dit_chain = [("dit", ["train_dit", "--vae", vae, "--output", dit])]
    decoder_chain = [("decoder", ["train_vae", "--output", vae, "--part", "decoder", "--minutes", "14"])]
    return first, [unet_chain, dit_chain, decoder_chain]


def run_chain(chain: list[Part], output: Path, log: TextIO) -> bool:
    """Run parts one after another until one fails; return whether all succeeded."""
    return all(run_part(name, command, output, log) for name, command in chain)


def run_part(name: str, command: list[str], output: Path, log: TextIO) -> bool:
    """Run a part, again if it is killed; return whether it succeeded."""
    script, *arguments = command
    # Threads that wait actively would occupy the cores of the threads that they wait for.
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
    for _ in range(MAX_TRIES):
        write_log(log, f"{name}: {script} {' '.join(arguments)}")
        with (output / f"{name.replace(' ', '-')}.log").open("a") as output_file:
            code = subprocess.run(
                [sys.executable, str(HERE / f"{script}.py"), *arguments],
                stdout=output_file, stderr=output_file, env=environment, check=False,
            ).returncode
        write_log(log, f"{name}: exit code {code}")
        if code >= 0:
            break
    return code == 0


def write_log(log: TextIO, message: str) -> None:
    log.write(f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC  {message}\n")
    log.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    lock_folder(args.output)
    log = (args.output / "run.log").open("a")
    first, chains = plan_parts(args.output)
    is_finished = run_chain(first, args.output, log)
    if is_finished:
        with ThreadPoolExecutor(len(chains)) as pool:
            is_finished = all(list(pool.map(lambda chain: run_chain(chain, args.output, log), chains)))
    if not is_finished:
        raise SystemExit(f"not finished; see {args.output / 'run.log'}")


if __name__ == "__main__":
    main()

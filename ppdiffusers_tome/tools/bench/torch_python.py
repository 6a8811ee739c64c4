"""tomesd under PyTorch: a script of this folder, run by the interpreter of another environment."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppdiffusers_tome.cpu.process import keeps_freed_memory
from ppdiffusers_tome.errors import UserError

# What ``keep_freed_memory`` does, for a process that does not know it.
_KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**33)}


def run_with_torch(torch_python: Path, script: str, given: Mapping[str, Any]) -> Any:
    """What a script prints in its last line, from JSON. It keeps freed memory where this process does.

    Args:
        torch_python: the interpreter of an environment with torch and tomesd.
        script: a file of this folder, which needs neither Paddle nor this package.
        given: handed to it as JSON.

    Raises:
        UserError: it cannot be run.
    """
    command = [str(torch_python), str(Path(__file__).with_name(script)), json.dumps(given)]
    environment = {**os.environ, **(_KEEP_FREED_MEMORY if keeps_freed_memory() else {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError) as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
        raise UserError(
            f"--torch-python {torch_python} could not run tomesd ({' '.join(reason)}); name the python of an "
            "environment with torch, tomesd and, for a UNet, diffusers 0.29, such as venv/bin/python"
        ) from error

"""The process of a command: its packages, and settings before Paddle."""

import os
import sys
from importlib.util import find_spec

from ppdiffusers_tome.cpu import prepare_cpu
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.machine import count_usable_cores

MODULES = ("matplotlib", "packaging", "PIL", "psutil", "skimage", "tqdm")  # which the extra ``cli`` installs


def require_modules(command: str) -> None:
    """Raise a ``UserError`` if a package that commands need is missing."""
    missing = [module for module in MODULES if find_spec(module) is None]
    if missing:
        raise UserError(
            f"{command} needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            f'pip install ".[cli]" in a clone of the repository'
        )


def prepare_process(*, keep_memory: bool) -> None:
    """Set up the process, unless a program has imported Paddle already."""
    if "paddle" in sys.modules:
        return
    os.environ.setdefault("GLOG_minloglevel", "2")  # errors
    # The cores are shared among the ranks of Paddle's launcher, which sets one thread for each.
    ranks, given = int(os.environ.get("PADDLE_LOCAL_SIZE") or 0), os.environ.get("OMP_NUM_THREADS")
    chooses = not given or (ranks > 0 and given == "1")
    prepare_cpu(max(1, count_usable_cores() // max(1, ranks)) if chooses else None, keep_memory=keep_memory)

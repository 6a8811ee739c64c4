"""Programs that tests start, and their environment."""

import os
import subprocess
import sys
from pathlib import Path

# Settings that a program makes for itself, and that this one may have inherited.
OWN_SETTINGS = ("OMP_NUM_THREADS", "MKL_DEBUG_CPU_TYPE", "KMP_BLOCKTIME", "GLOG_minloglevel", "PADDLE_LOCAL_SIZE")


def python_path(*folders: Path) -> str:
    """Return a program's ``PYTHONPATH``: that of the tests, and then these folders."""
    return os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *map(str, folders)])


def run_python(
    *command: str, cwd: Path | None = None, check: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, without the settings of this one."""
    inherited = {name: value for name, value in os.environ.items() if name not in OWN_SETTINGS}
    command = (sys.executable, *command)
    return subprocess.run(
        command, cwd=cwd, check=check, capture_output=True, text=True, env={**inherited, **environment}
    )

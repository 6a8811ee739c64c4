"""The memory that Linux' control groups leave to this process, as a container, a service or a batch job is given it.

Version 2, version 1, and both beside each other. Knows no Paddle.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_GROUPS, _MOUNTS = Path("/proc/self/cgroup"), Path("/proc/self/mountinfo")
_FILES = ("inactive_file", "active_file")  # what the system keeps of files counts, and goes when memory is wanted


def memory_left() -> dict[str, int]:
    """Bytes below the limits of this process's groups and of those that they are in.

    By the names that ``/proc/meminfo`` has for the same of the machine: ``MemAvailable``, ``SwapFree``; without those
    that have no limit, and empty where there are no groups.
    """
    left: dict[str, int] = {}
    with suppress(OSError, ValueError):
        for folder, version in _folders():
            for name, free in (_left_of_2 if version == 2 else _left_of_1)(folder).items():
                left[name] = max(0, min(free, left.get(name, free)))
    return left


def memory_limits() -> list[int]:
    """Bytes that this process's groups, and those that they are in, may have, innermost first; those with a limit."""
    limits = []
    with suppress(OSError, ValueError):
        for folder, version in _folders():
            with suppress(OSError, ValueError):  # "max" where there is none
                limits.append(int((folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).read_text()))
    return limits


def _folders() -> Iterator[tuple[Path, int]]:
    """The folders that tell of this process's groups, innermost first, each with its version."""
    own = {}
    for line in _GROUPS.read_text().splitlines():
        number, controllers, group = line.split(":", 2)
        if number == "0":
            own[2] = PurePosixPath(group)
        elif "memory" in controllers.split(","):
            own[1] = PurePosixPath(group)
    for line in _MOUNTS.read_text().splitlines():
        place, _, kind = line.partition(" - ")
        _, _, _, root, mount, *_ = place.split(" ")
        file_system, _, options = kind.split(" ", 2)
        version = {"cgroup2": 2, "cgroup": 1}.get(file_system, 0)
        if version not in own or (version == 1 and "memory" not in options.split(",")):
            continue
        # Of a container that shares its machine's name space the path is the machine's, and its own group is mounted.
        inside = own[version].relative_to(root) if own[version].is_relative_to(root) else PurePosixPath()
        for folder in (inside, *inside.parents):
            yield Path(mount, folder), version


def _left_of_2(folder: Path) -> dict[str, int]:
    left = {}
    memory = _below(folder / "memory.max", "memory.current")
    swap = _below(folder / "memory.swap.max", "memory.swap.current")
    if memory is not None:
        left["MemAvailable"] = memory + _files(folder, "")
    if swap is not None:
        left["SwapFree"] = swap
    return left


def _left_of_1(folder: Path) -> dict[str, int]:
    memory = _below(folder / "memory.limit_in_bytes", "memory.usage_in_bytes")
    both = _below(folder / "memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes")
    if memory is None:
        return {}
    swap = {} if both is None else {"SwapFree": both - memory}
    return {"MemAvailable": memory + _files(folder, "total_"), **swap}


def _below(limit: Path, used: str) -> int | None:
    """How far a group is below a limit; ``used`` is the file beside it that says how much it has taken.

    None where the files are not there, or say ``max``, which is no limit.
    """
    with suppress(OSError, ValueError):
        return int(limit.read_text()) - int(limit.with_name(used).read_text())
    return None


def _files(folder: Path, prefix: str) -> int:
    """Bytes of a group that the system keeps of files."""
    with suppress(OSError, ValueError):
        told = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(told.get(prefix + name, 0)) for name in _FILES)
    return 0

"""Free and total memory, within the limits of Linux's control groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ppdiffusers_tome.tuning.measurement import Meter as Meter
from ppdiffusers_tome.tuning.measurement import device_memory

_CGROUPS, _CGROUP_ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def get_free_memory() -> int:
    """Return the bytes of memory that new data of this process can take."""
    import psutil

    return max(0, min([psutil.virtual_memory().available, *(limit - used for limit, used in _read_cgroups())]))


def get_total_memory() -> int:
    """Return the bytes of memory that this process can take at most."""
    import psutil

    return min([psutil.virtual_memory().total, *(limit for limit, _ in _read_cgroups())])


def explain_peak() -> str:
    """Explain the meaning of ``peak_bytes`` on this device with this Paddle."""
    return device_memory().meaning


def highest_peak(peaks: Iterable[int | None]) -> int | None:
    """Return the highest of several peaks; None if one of them was not measured."""
    peaks = list(peaks)
    return None if None in peaks else max(peaks)  # type: ignore[type-var]


def _read_cgroups() -> Iterator[tuple[int, int]]:
    """Yield limit and use of control groups in bytes, of version 1 and 2."""
    try:
        lines = _CGROUPS.read_text().splitlines()
    except OSError:  # another system than Linux
        return
    for line in lines:
        number, controllers, group = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            root, limit, use, prefix = _CGROUP_ROOT, "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            root, limit, use, prefix = (
                _CGROUP_ROOT / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
            )  # fmt: skip
        else:
            continue
        # In a container the path may be the host's, which is not there; the root is then the container's own group.
        innermost = root / group.lstrip("/")
        for folder in (innermost, *(parent for parent in innermost.parents if parent.is_relative_to(root))):
            with suppress(OSError, ValueError):  # "max" is no limit
                limit_bytes, used_bytes = int((folder / limit).read_text()), int((folder / use).read_text())
                yield limit_bytes, used_bytes - _read_reclaimable(folder, prefix)


def _read_reclaimable(folder: Path, prefix: str) -> int:
    """Return the bytes of cached files, which make room when memory is needed."""
    with suppress(OSError, ValueError):
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(stat.get(f"{prefix}{name}_file", 0)) for name in ("inactive", "active"))
    return 0

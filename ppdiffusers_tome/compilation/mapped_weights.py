"""Weights in a mapped file, so that a compiled model is held once.

OpenVINO packs weights anew, so a compiled model is in memory twice. Paddle's copy is read once an image, to find
changes (``weight_reader.py``). Where memory is short, the system can drop what is mapped from a file, and read it from
the disk again for the next image. It is not the file that the model was loaded from: saving over that one would change
the weights of another model, or end the process.
"""

import contextlib
import mmap
import os
import secrets
import shutil
import threading
import weakref
from collections import Counter
from itertools import accumulate
from pathlib import Path

import numpy as np
import paddle
from paddle.nn import Layer

from ppdiffusers_tome.compilation.arrays import share_memory
from ppdiffusers_tome.compilation.cache_folder import find_cache_folder
from ppdiffusers_tome.compilation.weight_reader import hash_arrays
from ppdiffusers_tome.machine import give_memory_back
from ppdiffusers_tome.messages import show_progress, warn_user
from ppdiffusers_tome.patching.call_stack import renew_after_fork

MIN_BYTES = 64 * 2**20  # A smaller model would not show beside the 500 MiB that Paddle and OpenVINO hold anyway.
FOLDER_BYTES = 16 * 2**30  # At most this, or one larger model. Four models of Stable Diffusion 1.5's size fit.
PAGE = 4096  # A weight begins at a page, as tensors of Paddle do, so that changing it copies no other's memory.
_MAPPINGS: list[tuple[weakref.ref[mmap.mmap], range]] = []  # Each mapping with its addresses.
_LOCK = threading.RLock()
renew_after_fork(_LOCK)


def map_weights(model: Layer, label: str) -> None:
    """Move a model's float32 weights on the CPU into a mapped file.

    The mapping is private: a weight may be trained or replaced as before, which changes neither the file nor other
    models. The file is in the user's cache folder, named by a hash of what it holds, so equal weights of other models
    and processes share it. Where that fails, the weights stay where they are, and one line says why.

    Call it while no other thread computes with the model or changes it: the memory of its weights is freed. A view of a
    weight that is not in the model (``weight.T``) keeps its values and follows the weight no more.
    """
    with _LOCK:  # Otherwise one thread might read what another frees.
        weights = _list_weights(model)
        arrays = share_memory(*weights)
        if sum(array.nbytes for array in arrays) < MIN_BYTES:
            return
        try:
            mapped = _find_or_write(arrays, label)
        except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
            # The warning names neither model nor file, so that it is shown once for all models.
            reason = getattr(error, "strerror", None) or error
            warn_user(f"weights stay in memory, where a file would let the system drop them: {reason}")
            return
        for weight, array in zip(weights, mapped, strict=True):
            new = paddle.utils.dlpack.from_dlpack(array.__dlpack__())  # Kept by name, as get_tensor() does not keep it.
            weight.get_tensor()._share_data_with(new.get_tensor())
        give_memory_back()


def _list_weights(model: Layer) -> list[paddle.Tensor]:
    """List the tensors that may move, each once: their memory is theirs alone."""
    layers = model.sublayers(include_self=True)
    found = {id(x): x for each in layers for held in (each._parameters, each._buffers) for x in held.values()}
    tensors = [x for x in found.values() if x is not None and x.is_dense() and x._is_initialized()]
    users = Counter(x.data_ptr() - x._offset() for x in tensors)
    return [
        x for x in tensors
        if x.dtype == paddle.float32 and x.place.is_cpu_place() and x.is_contiguous() and users[x.data_ptr()] == 1
        and (not hasattr(x, "_holder_size") or x._holder_size() == 4 * x.size)  # Paddle 3.0 does not tell the size.
        and not any(memory() and x.data_ptr() in addresses for memory, addresses in _MAPPINGS)
    ]  # fmt: skip


def _find_or_write(arrays: list[np.ndarray], label: str) -> list[np.ndarray]:
    """Return equal arrays on a mapped file; write a missing or damaged one."""
    key = hash_arrays(arrays)
    path = find_cache_folder() / "weights" / f"{key}.weights"
    if (mapped := _map_file(path, arrays, key)) is None:
        _write_file(path, arrays, label)
        if (mapped := _map_file(path, arrays, key)) is None:
            raise OSError(f"{path} is damaged, or a weight changed meanwhile")
    with contextlib.suppress(OSError):  # The mapping holds in a folder without permission, or if the file was deleted.
        os.utime(path)  # Its last use, by which ``_make_room`` chooses.
    return mapped


def _map_file(path: Path, arrays: list[np.ndarray], key: str) -> list[np.ndarray] | None:
    """Map a file of arrays like these; return None if it differs."""
    *begins, size = accumulate((-(-array.nbytes // PAGE) * PAGE for array in arrays), initial=0)
    try:
        with path.open("rb") as file:
            memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    except (FileNotFoundError, ValueError):  # ValueError: it is shorter
        return None
    numbers = np.frombuffer(memory, np.float32)
    places = zip(begins, arrays, strict=True)
    mapped = [numbers[begin // 4 :][: array.size].reshape(array.shape) for begin, array in places]
    if hash_arrays(mapped) != key:
        return None
    addresses = range(numbers.ctypes.data, numbers.ctypes.data + size)
    _MAPPINGS[:] = [*(each for each in _MAPPINGS if each[0]()), (weakref.ref(memory), addresses)]
    return mapped


def _write_file(path: Path, arrays: list[np.ndarray], label: str) -> None:
    """Write arrays under another name, and rename the file when complete."""
    size = sum(array.nbytes + -array.nbytes % PAGE for array in arrays)
    path.parent.mkdir(parents=True, exist_ok=True)
    _make_room(path.parent, size)
    if shutil.disk_usage(path.parent).free < size:
        raise OSError(f"{path.parent} has no room for {size / 2**30:.2f} GiB")
    why = "again, as the file there is damaged" if path.exists() else "once"
    show_progress(f"writing {label}'s weights, {size / 2**30:.2f} GiB, to {path.parent}, {why}")
    temporary = path.with_name(f"{secrets.token_hex(8)}.weights.tmp")
    try:
        # Nobody else reads the weights, nor does anybody write to a file that is mapped. There is no fsync, which takes
        # long: a file that a crash of the system damages is found when it is read.
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o400)) as file:
            for array in arrays:
                file.write(array.data)
                file.write(bytes(-array.nbytes % PAGE))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _make_room(folder: Path, size: int) -> None:
    """Delete the least recently used files, to keep the bound with one more."""
    found = []
    for path in folder.glob("*.weights*"):
        with contextlib.suppress(FileNotFoundError):  # Another process renamed or deleted it.
            found.append((path.stat().st_mtime, path.stat().st_size, path))
    for _, length, path in sorted(found, reverse=True):
        size += length
        if size > FOLDER_BYTES:
            path.unlink(missing_ok=True)  # Processes that have it mapped keep it.

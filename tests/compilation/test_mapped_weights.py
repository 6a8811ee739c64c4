"""Weights that move to a mapped file: what stays as it was, the file, and what keeps them in memory."""

import copy
import multiprocessing
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest

import tiny
from compilation.comparison import needs_openvino
from ppdiffusers_tome.compilation import mapped_weights
from ppdiffusers_tome.compilation.mapped_weights import map_weights

pytestmark = [needs_openvino[0], pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")]


@pytest.fixture(autouse=True)
def _small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_weights, "MIN_BYTES", 1)


@pytest.fixture
def folder(cache: Path) -> Path:
    """Where the files are."""
    return cache / "weights"


def build(value: float = 1.0) -> paddle.nn.Layer:
    """Build two layers; every weight is another number."""
    model = paddle.nn.Sequential(paddle.nn.Linear(50, 70), paddle.nn.Linear(70, 3))
    for number, weight in enumerate(model.parameters()):
        weight.set_value(np.arange(weight.size, dtype=np.float32).reshape(weight.shape) * value + number)
    return model


def map_quietly(model: paddle.nn.Layer) -> Any:
    """Map a model's weights, and fail where they stay in memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="ToMe")
        map_weights(model, "model")
    return model


def values(model: paddle.nn.Layer) -> dict[str, np.ndarray]:
    return {name: x.astype("float32").numpy().copy() for name, x in model.state_dict().items()}


def check_values(model: paddle.nn.Layer, expected: dict[str, np.ndarray]) -> None:
    found = values(model)
    assert list(found) == list(expected)
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name], name)


def find_files(*tensors: paddle.Tensor) -> list[tuple[str, Path] | None]:
    """Return the number (inode) and path of the file of weights that each tensor's memory is mapped to."""
    lines = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines() if ".weights" in line)
    files = {tuple(int(each, 16) for each in line[0].split("-")): (line[4], Path(line[5])) for line in lines}
    return [next((file for (begin, end), file in files.items() if begin <= x.data_ptr() < end), None) for x in tensors]


def list_files_of(model: paddle.nn.Layer) -> list[tuple[str, Path] | None]:
    return sorted(set(find_files(*model.parameters())), key=str)


def is_mapped(model: paddle.nn.Layer) -> bool:
    files = list_files_of(model)
    assert None not in files or files == [None]
    return files != [None]


# What stays as it was.


def test_all_of_a_model_but_the_addresses_stays() -> None:
    model = tiny.unet()
    model.conv_in.weight.stop_gradient = True
    before, expected, image = tiny.snapshot(model), values(model), tiny.run_unet(model)
    described = [(id(x), x.name, x.stop_gradient, x.shape, x.strides, x.dtype) for x in model.parameters()]
    map_quietly(model)
    assert is_mapped(model)
    check_values(model, expected)
    assert tiny.snapshot(model) == before
    assert [(id(x), x.name, x.stop_gradient, x.shape, x.strides, x.dtype) for x in model.parameters()] == described
    np.testing.assert_array_equal(tiny.run_unet(model), image)


def train(model: paddle.nn.Layer) -> None:
    optimizer = paddle.optimizer.AdamW(0.1, parameters=model.parameters())
    for seed in range(2):
        model(tiny.array((4, 50), seed)).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()


def set_a_row(model: paddle.nn.Layer) -> None:
    with paddle.no_grad():
        model[0].weight[3] = 1


CHANGES = {
    "train": train,
    "set a row": set_a_row,
    "set values": lambda model: model[0].weight.set_value(np.zeros([50, 70], np.float32)),
    "fuse a LoRA": lambda model: model[0].weight.copy_(model[0].weight * 2, False),  # as ppdiffusers does
    "halve": lambda model: model.to(dtype="float16"),
    "halve and double": lambda model: model.to(dtype="bfloat16").to(dtype="float32"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_that_models_alone(change: Callable[[paddle.nn.Layer], None], folder: Path) -> None:
    plain, model, other = build(), map_quietly(build()), map_quietly(build())
    expected, (file,) = values(other), folder.iterdir()
    content = file.read_bytes()
    change(plain)
    change(model)
    check_values(model, values(plain))
    assert any((value != expected[name]).any() for name, value in values(model).items())
    check_values(other, expected)
    assert file.read_bytes() == content
    # Once more, after the change: nothing is undone.
    map_quietly(model)
    check_values(model, values(plain))


def test_tensors_that_share_memory_stay_shared() -> None:
    model = build()
    model[1].twin = model[0].bias  # a parameter of two layers, which moves
    model[0].alias = model[0].weight.detach()
    model.register_buffer("part", model[1].weight.detach()[1:3])
    whole, another = tiny.array((10, 4)), tiny.array((10, 4))
    model.register_buffer("first", whole[:3])
    model.register_buffer("later", another[5:6])
    expected, outside = values(model), model[0].bias.detach()
    map_quietly(model)
    check_values(model, expected)
    assert find_files(model[0].bias) != [None]
    with paddle.no_grad():
        for weight in (model[0].weight, model[0].bias, model[1].weight, whole, another):
            weight.set_value(weight * 0 + 5)
    for x in (model[1].twin, model[0].alias, model.part, model.first, model.later, outside):
        assert (x.numpy() == 5).all()


def test_tensors_of_other_kinds_stay() -> None:
    model = build()
    model.register_buffer("scalar", paddle.to_tensor(3.0))
    model.register_buffer("empty", paddle.zeros([0, 4]))
    model.register_buffer("ids", paddle.arange(4, dtype="int32"))
    model.register_buffer("short", paddle.ones([4], "bfloat16"))
    model.register_buffer("transposed", tiny.array((4, 3)).T)
    model.register_buffer("nothing", None)
    model.register_buffer("nan", paddle.to_tensor([float("nan"), -0.0]))
    with paddle.LazyGuard():
        model.lazy = paddle.nn.Linear(2, 2)
    moved = (*model[0].parameters(), *model[1].parameters(), model.scalar, model.nan)
    expected = {name: x.astype("float32").numpy().copy() for name, x in model.named_buffers() if x.size}
    map_quietly(model)
    assert all(find_files(*moved))
    assert not any(find_files(model.ids, model.short, model.transposed))
    for name, value in expected.items():
        np.testing.assert_array_equal(getattr(model, name).astype("float32").numpy(), value)
    assert not model.lazy.weight._is_initialized()


def read_own_memory() -> int:
    """Return the bytes that are the process's own (RssAnon)."""
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_memory_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the bound that users have
    paddle.zeros([2**23])  # glibc keeps what is smaller than the largest that was freed, between others
    model, between = paddle.nn.LayerList(), []
    for _ in range(100):
        model.append(paddle.nn.Linear(512, 512))
        between.append(paddle.zeros([1024]))
    before = read_own_memory()
    map_quietly(model)
    assert is_mapped(model)
    assert before - read_own_memory() > 90 * 2**20


def test_small_models_are_left_alone(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(mapped_weights, "MIN_BYTES", 15_133)
    assert not is_mapped(map_quietly(build()))  # of 15,132 bytes
    assert not folder.exists()


# The file.


def test_a_second_time_does_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = map_quietly(build())
    assert capfd.readouterr().err.splitlines() == [f"ToMe: writing model's weights, 0.00 GiB, to {folder}, once"]
    addresses, (file,) = [x.data_ptr() for x in model.parameters()], folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o400
    map_quietly(model)
    assert [x.data_ptr() for x in model.parameters()] == addresses
    assert list(folder.iterdir()) == [file]
    assert capfd.readouterr().err == ""


def map_and_change(barrier: Any) -> None:
    barrier.wait(60)
    model = map_quietly(build())
    assert is_mapped(model)
    for weight in model.parameters():
        weight.set_value(weight + 1)
    barrier.wait(60)


def test_two_processes_at_once(folder: Path) -> None:
    """Neither sees the other's changes, nor the end of it."""
    processes = multiprocessing.get_context("fork")
    barrier = processes.Barrier(2)
    other = processes.Process(target=map_and_change, args=(barrier,))
    other.start()
    barrier.wait(60)
    model = map_quietly(build())
    barrier.wait(60)
    other.join(60)
    assert other.exitcode == 0
    for each in (model, map_quietly(build())):
        check_values(each, values(build()))
    (path,) = folder.iterdir()
    assert [mapped for _, mapped in list_files_of(model)] == [path]


def test_threads_at_once(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # Large, so that each computes while others do.
    model = paddle.nn.Sequential(build(), paddle.nn.Linear(2000, 2000))
    expected, twins = values(model), [copy.deepcopy(model) for _ in range(3)]
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(map_weights, (model, model, *twins), ["model"] * 5))
    assert capfd.readouterr().err.count("writing") == 1
    assert len(list(folder.iterdir())) == 1
    for each in (model, *twins):
        assert list_files_of(each) == list_files_of(model) != [None]
        check_values(each, expected)


@pytest.mark.parametrize("damage", ["a byte", "shorter", "empty", "longer"])
def test_a_damaged_file_is_replaced(damage: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    map_quietly(build())
    (file,), whole = folder.iterdir(), values(build())
    content = file.read_bytes()
    changed = bytearray(content)
    changed[4096 * 4 + 30] ^= 1  # of the first bias
    file.unlink()  # a file that is mapped is not written to
    file.write_bytes({"a byte": changed, "shorter": content[:-1], "empty": b"", "longer": content + b"0"}[damage])
    capfd.readouterr()
    model = map_quietly(build())
    assert is_mapped(model)
    check_values(model, whole)
    assert file.read_bytes()[: len(content)] == content
    told = [line.endswith("again, as the file there is damaged") for line in capfd.readouterr().err.splitlines()]
    assert told == ([] if damage == "longer" else [True])  # a longer one holds the weights all the same


def test_files_that_were_not_used_for_longest_are_deleted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_weights, "FOLDER_BYTES", 3 * 28_672)
    models, files = [], []
    for number in (1, 2, 3):
        models.append(map_quietly(build(number)))
        files.extend(path for _, path in list_files_of(models[-1]))
        os.utime(files[-1], (number, number))
    half = folder / "0123.weights.tmp"  # of a process that was killed
    half.write_bytes(bytes(100))
    os.utime(half, (0, 0))
    foreign = folder / "notes.txt"
    foreign.write_bytes(bytes(10**6))
    map_quietly(build(1))  # so the second is the oldest
    models.append(map_quietly(build(4)))
    assert [each.exists() for each in (*files, half, foreign)] == [True, False, True, False, True]
    for number, model in enumerate(models, start=1):
        check_values(model, values(build(number)))


# What keeps the weights in memory.


def _fill_disk(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=28_671))


def _take_home(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.delenv("XDG_CACHE_HOME")
    patch.setattr(Path, "home", lambda: Path("~no-user-of-this-name").expanduser())


def _put_file_for_folder(folder: Path, patch: pytest.MonkeyPatch) -> None:
    folder.parent.mkdir(parents=True)
    folder.touch()


OBSTACLES = {
    "has no room for 0.00 GiB": _fill_disk,
    "Could not determine home directory": _take_home,
    "Not a directory": _put_file_for_folder,
}


@pytest.mark.parametrize("reason", OBSTACLES)
def test_weights_stay_where_no_file_can_be_written(
    reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One warning tells it of two models, and nothing is begun."""
    OBSTACLES[reason](folder, monkeypatch)
    models = build(), build()
    addresses = [x.data_ptr() for x in models[0].parameters()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for model in models:
            map_weights(model, "model")
    (message,) = (str(each.message) for each in caught)
    assert message.startswith("ToMe: weights stay in memory")
    assert reason in message
    assert "\n" not in message
    assert [x.data_ptr() for x in models[0].parameters()] == addresses
    for model in models:
        check_values(model, values(build()))
    assert not list(folder.glob("*"))
    assert "writing" not in capfd.readouterr().err


def interrupt_at(number: int, model: paddle.nn.Layer) -> bool:
    """Interrupt before the given line that the module runs; return False where it runs fewer."""
    lines = 0

    def interrupt(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != mapped_weights.__file__:
            return None
        lines += event == "line"
        if lines > number:
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        map_weights(model, "model")
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        mapped_weights._LOCK._at_fork_reinit()  # a line may be that on which it is about to be released
    return False


def test_a_key_pressed_at_any_moment(folder: Path) -> None:
    """Every weight is whole afterwards, no file is incomplete, and the next call works."""
    expected, number, model = values(build()), 0, build()
    while interrupt_at(number, model):
        check_values(model, expected)
        if folder.exists():
            assert all(each.suffix == ".weights" and each.stat().st_size == 28_672 for each in folder.iterdir())
        check_values(map_quietly(model), expected)
        assert is_mapped(model)
        shutil.rmtree(folder)
        mapped_weights._MAPPINGS.clear()  # each makes the next call longer
        number, model = number + 1, build()
    assert number > 50

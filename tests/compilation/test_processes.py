"""Threads, forks, and what a second process need not do again."""

from __future__ import annotations

import copy
import gc
import os
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest

import tiny
from compilation.comparison import Counted, check_same, compile_small_unet, difference, needs_openvino, programs_alone
from ppdiffusers_tome import apply_tome, compile_cpu, remove_tome, shared_copy, uncompile_cpu
from ppdiffusers_tome.compilation import api, mapped_weights, trace
from ppdiffusers_tome.compilation.twin import COMPILED, run_twin
from ppdiffusers_tome.cpu import count_usable_cores
from ppdiffusers_tome.patching.call_stack import CHANGE_LOCK

pytestmark = needs_openvino

SECOND = """
import functools, sys, warnings
import paddle, ppdiffusers
import tiny
from compilation.comparison import Counted
from ppdiffusers_tome import compile_cpu
import pytest, json

counted = Counted(pytest.MonkeyPatch())
warnings.filterwarnings("error", message="(?s).*ToMe")
calls = []
for factor in (1, 2):
    model = tiny.small_unet()
    model.conv_in.weight.set_value(model.conv_in.weight * factor)
    compile_cpu(model)
    before = counted.calls
    tiny.run_unet(model)
    calls.append(counted.calls - before)
print(json.dumps(calls))
"""


def test_a_second_process_does_not_compare_again(cache: Path) -> None:
    """But for weights that it has not compared."""
    tiny.run_unet(compile_small_unet())
    assert [(each.is_file(), each.stat().st_size) for each in cache.iterdir()] == [(True, 0)]
    assert tiny.run_in_new_process(SECOND) == [0, 1]
    assert len(list(cache.iterdir())) == 2


@pytest.mark.skipif(count_usable_cores() < 2, reason="one core")
def test_fewer_threads_than_cores_are_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of several processes would all be on the first core, each of them half as fast."""
    monkeypatch.setattr(api, "prepare_cpu", lambda **_: 1)
    model = compile_small_unet()
    tiny.run_unet(model)
    (program,) = vars(model)[COMPILED]._programs.values()
    assert program._request.get_compiled_model().get_property("ENABLE_CPU_PINNING") is False


def test_two_threads_on_one_pipeline() -> None:
    pipe, plain = tiny.pipeline(unet=tiny.small_unet()), tiny.pipeline(unet=tiny.small_unet())
    apply_tome(pipe, 0.5)
    apply_tome(plain, 0.5)
    compile_cpu(pipe)
    expected = tiny.run_pipeline(plain)

    def draw(number: int) -> np.ndarray:
        with paddle.no_grad():
            return np.stack([tiny.run_unet(pipe.unet, timestep=each, batch=1 + number % 2) for each in (900, 40)])

    with programs_alone(), ThreadPoolExecutor(2) as pool:
        found = list(pool.map(draw, range(4)))
    for number, each in enumerate(found):
        for timestep, output in zip((900, 40), each, strict=True):
            assert difference(output, tiny.run_unet(plain.unet, timestep=timestep, batch=1 + number % 2)) <= 1e-4
    assert difference(tiny.run_pipeline(pipe), expected) <= 1e-4


def test_two_models_first_called_at_once() -> None:
    """Paddle writes one program at a time, and its own would get the operators of the other."""
    models, plain = [compile_small_unet() for _ in range(3)], tiny.run_unet(tiny.small_unet())
    with programs_alone(), ThreadPoolExecutor(3) as pool:
        found = list(pool.map(tiny.run_unet, models))
    assert all(difference(each, plain) <= 1e-4 for each in found)
    with paddle.no_grad():
        assert float(paddle.ones([2]).sum()) == 2


def test_other_threads_compute_while_one_compiles() -> None:
    """Those that run already, and those that begin meanwhile."""
    stop, errors = threading.Event(), []

    def compute() -> None:
        try:
            x = paddle.ones([4, 4])
            assert float((x @ x).sum()) == 64
        except Exception as error:
            errors.append(error)

    def keep_on() -> None:
        while not stop.is_set():
            compute()

    def begin() -> None:
        while not stop.is_set():
            thread = threading.Thread(target=compute)
            thread.start()
            thread.join()

    threads = [threading.Thread(target=each) for each in (keep_on, begin)]
    for each in threads:
        each.start()
    try:
        check_same(compile_small_unet(), tiny.small_unet())
    finally:
        stop.set()
        for each in threads:
            each.join()
    assert errors == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_is_computed_by_paddle() -> None:
    """Also where another thread holds the model's lock."""
    model = compile_small_unet()
    expected = tiny.run_unet(tiny.small_unet())
    tiny.run_unet(model)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with vars(model)[COMPILED]._lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            same = difference(tiny.run_unet(model), expected) <= 1e-4
        os._exit(0 if same and any("forked" in str(each.message) for each in caught) else 1)
    release.set()
    thread.join()
    for _ in range(300):
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            break
        time.sleep(0.1)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the forked process hangs")
    assert status == 0


WORKER = """
import json, os, signal, warnings
import tiny
from compilation.comparison import difference
from ppdiffusers_tome import compile_cpu

model, expected = compile_cpu(tiny.small_unet()), tiny.run_unet(tiny.small_unet())
child = os.fork()
if child == 0:
    signal.alarm(60)
    warnings.filterwarnings("error", message="(?s).*computed by Paddle")
    os._exit(0 if 0 < difference(tiny.run_unet(model), expected) < 1e-4 else 1)
print(json.dumps(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_worker_forked_before_the_first_call_compiles_for_itself() -> None:
    """As those of a server that loads its model first."""
    assert tiny.run_in_new_process(WORKER) == 0


class Held:
    """Holds a thread where it traces a call, while another does something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tracing, self.done = threading.Event(), threading.Event()

        def run(*args: Any) -> Any:
            self.tracing.set()
            self.done.wait(60)
            return run_twin(*args)

        monkeypatch.setattr(trace, "run_twin", run)

    def meanwhile(self, call: Callable[[], Any], do: Callable[[], Any]) -> Any:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(call)
            assert self.tracing.wait(60)
            try:
                return do()
            finally:
                self.done.set()
                running.result()


@pytest.mark.parametrize("name", ["shared_copy", "deepcopy", "state_dict", "attributes", "merging of another"])
def test_a_model_is_itself_while_it_is_traced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies, settings of a copy and all attributes, in another thread."""
    model, plain, held = compile_small_unet(), tiny.small_unet(), Held(monkeypatch)
    copied = shared_copy(model)
    before = tiny.snapshot(model)
    actions: dict[str, Callable[[], Any]] = {
        "shared_copy": lambda: shared_copy(model),
        "deepcopy": lambda: copy.deepcopy(model),
        "state_dict": lambda: {name: x.numpy() for name, x in model.state_dict().items()},
        "attributes": lambda: tiny.snapshot(model),
        "merging of another": lambda: apply_tome(uncompile_cpu(copied), 0.5),
    }
    found = held.meanwhile(lambda: tiny.run_unet(model), actions[name])
    if name == "state_dict":
        assert all((found[key] == x.numpy()).all() for key, x in plain.state_dict().items())
    elif name == "attributes":
        assert found == before
    else:
        expected = apply_tome(plain, 0.5) if name == "merging of another" else plain
        assert difference(tiny.run_unet(found), tiny.run_unet(expected)) <= 1e-4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_forked_while_another_thread_holds_the_locks() -> None:
    model, expected = apply_tome(tiny.small_unet(), 0.5), tiny.run_unet(apply_tome(tiny.small_unet(), 0.5))
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with CHANGE_LOCK, trace._LOCK, mapped_weights._LOCK:
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with trace._LOCK, mapped_weights._LOCK:
            os._exit(0 if difference(tiny.run_unet(remove_tome(model)), expected) > 0 else 1)
    release.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_uncompiling_while_another_thread_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    model, held, results = compile_small_unet(), Held(monkeypatch), []
    with ThreadPoolExecutor(1) as pool:
        held.meanwhile(
            lambda: results.append(tiny.run_unet(model)),
            lambda: (pool.submit(uncompile_cpu, model), time.sleep(0.2)),
        )
    assert difference(results[0], tiny.run_unet(tiny.small_unet())) <= 1e-4
    assert [name for name in vars(model) if "compiled" in name or name == "forward"] == []


def test_uncompiling_frees_programs_at_once() -> None:
    """Not at the next full garbage collection, which counts objects and not gigabytes."""
    model = compile_small_unet()
    tiny.run_unet(model)
    (program,) = map(weakref.ref, vars(model)[COMPILED]._programs.values())
    gc.collect()
    gc.disable()
    try:
        uncompile_cpu(model)
        assert program() is None
    finally:
        gc.enable()


def test_nothing_is_left_of_a_model() -> None:
    model: Any = compile_small_unet()
    tiny.run_unet(model)
    programs = [weakref.ref(each) for each in vars(model)[COMPILED]._programs.values()]
    assert programs
    uncompile_cpu(model)
    gc.collect()
    assert [each() for each in programs] == [None]
    compile_cpu(model)
    tiny.run_unet(model)
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None


def test_the_bound_counts_what_programs_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder of few weights holds much more for its images."""
    vae = ppdiffusers.AutoencoderKL.from_pretrained(str(tiny.PHOTOGRAPHS), subfolder="vae").eval()
    weights = sum(4 * x.size for x in vae.decoder.parameters())
    compile_cpu(vae)
    monkeypatch.setattr("ppdiffusers_tome.compilation.model._MOST_BYTES", 4 * weights)
    for size in (36, 40, 44, 48):
        with paddle.no_grad():
            vae.decode(tiny.array((1, 4, size, 64)))
    programs = vars(vae.decoder)[COMPILED]._programs.values()
    assert len(programs) == 2
    assert all(program.num_bytes > 2 * weights for program in programs)


def test_programs_of_many_sizes_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppdiffusers_tome.compilation.model._MOST_BYTES", 0)
    counted = Counted(monkeypatch)
    model, plain = compile_small_unet(), tiny.small_unet()
    for width in (8, 12, 16, 8):
        check_same(model, plain, width=width)
        assert counted.during(lambda width=width: tiny.run_unet(model, width=width)) == 0
    assert len(vars(model)[COMPILED]._programs) == 2

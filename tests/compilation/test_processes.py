"""Threads, forks, and what a second process need not do again."""

import copy
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import paddle
import ppdiffusers
import pytest

import tiny
from compilation.comparison import check_by_paddle, check_same, difference, needs_openvino, programs_alone
from compilation.programs import compile_small_unet, get_compiled, list_openvino_models, list_programs
from ppdiffusers_tome import apply_tome, compile_cpu, remove_tome, shared_copy, uncompile_cpu
from ppdiffusers_tome.compilation import api, mapped_weights, trace
from ppdiffusers_tome.compilation.twin import TwinCall
from ppdiffusers_tome.machine import count_usable_cores
from ppdiffusers_tome.patching.call_stack import CHANGE_LOCK

pytestmark = needs_openvino

SECOND = """
import json, os, signal, warnings
import pytest, tiny
from compilation.comparison import Counted, difference
from ppdiffusers_tome import compile_cpu

counted = Counted(pytest.MonkeyPatch())
warnings.filterwarnings("error", message="(?s).*ToMe")
model, plain = compile_cpu(tiny.small_unet(), "float32"), tiny.small_unet()
tiny.run_unet(plain)
worker = os.fork()
if worker == 0:
    signal.alarm(60)
    for each in (model, plain):
        each.conv_in.weight.set_value(each.conv_in.weight * 3)
    os._exit(0 if 0 < difference(tiny.run_unet(model), tiny.run_unet(plain)) < 1e-4 else 1)
status = os.waitpid(worker, 0)[1]
calls = [counted.during(lambda: tiny.run_unet(model))]
model.conv_in.weight.set_value(model.conv_in.weight * 2)
calls.append(counted.during(lambda: tiny.run_unet(model)))
print(json.dumps([status, calls]))
"""


def test_a_second_process_does_not_compare_again(cache: Path) -> None:
    """But for weights that it has not compared.

    A worker that it forks before its first call, as a server does that loads its model first, compiles for itself.
    """
    tiny.run_unet(compile_small_unet())
    assert [(each.is_file(), each.stat().st_size) for each in cache.iterdir()] == [(True, 0)]
    assert tiny.run_in_new_process(SECOND) == [0, [0, 1]]
    assert len(list(cache.iterdir())) == 3


@pytest.mark.skipif(count_usable_cores() < 2, reason="one core")
def test_fewer_threads_than_cores_are_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of several processes would all be on the first core, each of them half as fast."""
    monkeypatch.setattr(api, "prepare_cpu", lambda **_: 1)
    model = compile_small_unet()
    tiny.run_unet(model)
    (compiled,) = list_openvino_models(model)
    assert compiled.get_property("ENABLE_CPU_PINNING") is False


def test_two_threads_on_one_pipeline() -> None:
    pipe, plain = (apply_tome(tiny.pipeline(unet=tiny.small_unet()), 0.5) for _ in range(2))
    compile_cpu(pipe, "float32")
    given = [dict(timestep=timestep, batch=batch) for timestep in (900, 40) for batch in (1, 2)]
    with programs_alone(), ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda each: tiny.run_unet(pipe.unet, **each), given * 2))
    for each, output in zip(given * 2, found, strict=True):
        assert difference(output, tiny.run_unet(plain.unet, **each)) <= 1e-4
    assert difference(tiny.run_pipeline(pipe), tiny.run_pipeline(plain)) <= 1e-4


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
    stop = threading.Event()

    def compute() -> None:
        x = paddle.ones([4, 4])
        assert float((x @ x).sum()) == 64

    def keep_on() -> None:
        while not stop.is_set():
            compute()

    def begin() -> None:
        while not stop.is_set():
            with ThreadPoolExecutor(1) as beginning:
                beginning.submit(compute).result()

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(each) for each in (keep_on, begin)]
        try:
            check_same(compile_small_unet(), tiny.small_unet())
        finally:
            stop.set()
    for each in running:
        each.result()


def test_a_forked_process_is_computed_by_paddle() -> None:
    """Also where another thread holds the locks."""
    model, plain = compile_cpu(apply_tome(tiny.small_unet(), 0.5), "float32"), apply_tome(tiny.small_unet(), 0.5)
    check_same(model, plain)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with get_compiled(model)._lock, CHANGE_LOCK, trace._LOCK, mapped_weights._LOCK:
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with suppress(BaseException):  # the rest of the tests is not this process's
            check_by_paddle(model, plain, "forked")
            with trace._LOCK, mapped_weights._LOCK:
                assert difference(tiny.run_unet(remove_tome(model)), tiny.run_unet(plain)) > 0
            os._exit(0)
        os._exit(1)
    release.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


class Held:
    """Holds a thread where it traces a call, while another does something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tracing, self.done, run_traced = threading.Event(), threading.Event(), TwinCall.run

        def run(twin_call: TwinCall) -> Any:
            self.tracing.set()
            self.done.wait(60)
            return run_traced(twin_call)

        monkeypatch.setattr(TwinCall, "run", run)

    def meanwhile(self, call: Callable[[], Any], do: Callable[[], Any]) -> Any:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(call)
            assert self.tracing.wait(60)
            try:
                return do()
            finally:
                self.done.set()
                running.result()


def test_a_model_is_itself_while_it_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies, settings of a copy and all attributes, in another thread."""
    model, plain, held = compile_small_unet(), tiny.small_unet(), Held(monkeypatch)
    copied, before = shared_copy(model), tiny.snapshot(model)
    *copies, merged, state, snapshot = held.meanwhile(
        lambda: tiny.run_unet(model),
        lambda: (
            shared_copy(model), copy.deepcopy(model), apply_tome(uncompile_cpu(copied), 0.5),
            {name: x.numpy() for name, x in model.state_dict().items()}, tiny.snapshot(model),
        ),
    )  # fmt: skip
    assert snapshot == before
    assert all((state[name] == x.numpy()).all() for name, x in plain.state_dict().items())
    for each in copies:
        assert difference(tiny.run_unet(each), tiny.run_unet(plain)) <= 1e-4
    assert difference(tiny.run_unet(merged), tiny.run_unet(apply_tome(plain, 0.5))) <= 1e-4


def test_uncompiling_while_another_thread_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    model, held, results = compile_small_unet(), Held(monkeypatch), []
    with ThreadPoolExecutor(1) as pool:
        held.meanwhile(
            lambda: results.append(tiny.run_unet(model)),
            lambda: (pool.submit(uncompile_cpu, model), time.sleep(0.2)),
        )
    assert difference(results[0], tiny.run_unet(tiny.small_unet())) <= 1e-4
    assert [name for name in vars(model) if "compiled" in name or name == "forward"] == []


def test_nothing_is_left_of_a_model() -> None:
    model: Any = compile_small_unet()
    tiny.run_unet(model)
    (program,) = map(weakref.ref, list_programs(model))
    gc.collect()
    gc.disable()
    try:
        uncompile_cpu(model)
        assert program() is None, "freed at the next full collection, which counts objects and not gigabytes"
    finally:
        gc.enable()
    tiny.run_unet(compile_cpu(model, "float32"))
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None


def test_the_bound_counts_what_programs_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder of few weights holds much more for its images."""
    vae = ppdiffusers.AutoencoderKL.from_pretrained(str(tiny.PHOTOGRAPHS), subfolder="vae").eval()
    weights = sum(4 * x.size for x in vae.decoder.parameters())
    compile_cpu(vae, "float32")
    monkeypatch.setattr("ppdiffusers_tome.compilation.model._MOST_BYTES", 4 * weights)
    for size in (36, 40, 44, 48):
        with paddle.no_grad():
            vae.decode(tiny.array((1, 4, size, 64)))
    programs = list_programs(vae.decoder)
    assert len(programs) == 2
    assert all(program.num_bytes > 2 * weights for program in programs)


def test_the_programs_that_were_used_longest_ago_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppdiffusers_tome.compilation.model._MOST_BYTES", 0)
    model, plain = compile_small_unet(), tiny.small_unet()
    for width in (8, 12, 8, 16):
        check_same(model, plain, width=width)
    assert [kind.shapes[0][0][-1] for kind, merged in get_compiled(model)._programs] == [8, 16]
    check_same(model, plain, width=12)  # made anew

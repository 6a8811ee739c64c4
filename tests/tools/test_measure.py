"""Seconds, memory also in a container, similarity, statistics, and the ledger that keeps them."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import psutil
import pytest

from ppdiffusers_tome import machine
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.measure import memory
from ppdiffusers_tome.tools.measure.ledger import Ledger
from ppdiffusers_tome.tools.measure.meter import Meter, find_highest_peak
from ppdiffusers_tome.tools.measure.similarity import compare_images
from ppdiffusers_tome.tools.measure.stats import Median
from ppdiffusers_tome.tools.measure.units import format_bytes

MIB = 2**20


def hold(mebibytes: int) -> None:
    float(paddle.ones([mebibytes * MIB // 4]).sum())


def test_a_peak_belongs_to_its_own_work():
    peaks = []
    for size in (1, 400, 100):  # a peak that cannot be reset would count the large one twice
        meter = Meter()
        hold(size)
        peaks.append(meter.peak_bytes())
    if paddle.__version__.startswith("2."):
        assert peaks == [None] * 3  # it cannot reset one
        return
    assert [(peak - peaks[0]) / MIB for peak in peaks[1:]] == [pytest.approx(size, abs=12) for size in (399, 99)]


def test_what_waits_for_the_garbage_collector_belongs_to_no_peak():
    meter = Meter()
    hold(1)
    alone = meter.peak_bytes()
    if alone is None:
        pytest.skip("Paddle 2.6 measures no memory")
    waiting: list[Any] = [paddle.ones([200 * MIB // 4])]
    waiting.append(waiting)
    del waiting
    meter = Meter()
    hold(1)
    assert abs(meter.peak_bytes() - alone) / MIB < 50


def test_the_highest_peak_is_known_where_each_is():
    assert find_highest_peak([1, None]) is None
    assert find_highest_peak(iter([1, 3, 2])) == 3
    assert (format_bytes(None), format_bytes(1536 * MIB)) == ("not measured", "1,536 MiB")


def test_similarity_of_identical_and_of_brighter_images():
    image = np.random.default_rng(0).integers(0, 200, (16, 24, 3), np.uint8)
    psnr, ssim = compare_images(image, image + np.uint8(10))
    assert compare_images(image, image) == (math.inf, 1)
    assert psnr == pytest.approx(20 * math.log10(255 / 10))
    assert 0.9 < ssim < 1


def test_intervals_hold_the_median_of_the_population_and_are_always_the_same():
    rng = np.random.default_rng(0)
    values = [rng.normal(size=20).tolist() for _ in range(60)]
    medians = list(map(Median.from_values, values))
    assert np.mean([median.interval[0] <= 0 <= median.interval[1] for median in medians]) > 0.85
    assert Median.from_values(values[0]) == medians[0]
    assert Median.from_values(values[0][:5]).interval is None
    assert Median.from_values([2.0] * 6).interval == (2.0, 2.0)
    assert Median.from_values([2.0] * 6).format("{:.1f}".format) == "2.0"
    assert Median.from_values(range(1, 7)).format("{:.1f}".format).startswith("3.5 [")


def test_infinite_values_have_medians_and_intervals():
    """As the PSNR of identical images."""
    half = Median.from_values([30.0, 31.0, 32.0, math.inf, math.inf, math.inf])
    assert half.median == math.inf
    low, high = half.interval or (math.nan, math.nan)
    assert low < 33 < high == math.inf
    assert Median.from_values([math.inf] * 6).interval == (math.inf, math.inf)


GIB = 2**30
LIMITS = {
    "none": {"memory.max": "max", "memory.current": "x", "memory.stat": ""},
    "of a group inside": {"a/b/memory.max": 8 * GIB, "a/b/memory.current": 6 * GIB,
                          "a/b/memory.stat": f"inactive_file {GIB}\nactive_file {GIB // 2}\n"},
    "version 2": {"memory.max": 8 * GIB, "memory.current": 6 * GIB,
                  "memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file {GIB // 2}\n"},
    "version 1": {"memory/memory.limit_in_bytes": 8 * GIB, "memory/memory.usage_in_bytes": 6 * GIB,
                  "memory/memory.stat": f"inactive_file 9\ntotal_inactive_file {GIB}\ntotal_active_file {GIB // 2}\n"},
}  # fmt: skip


@pytest.mark.parametrize("kind", LIMITS)
def test_limits_of_containers_count(kind, tmp_path, monkeypatch):
    """8 GiB, of which 6 are in use, 1.5 of them by cached files."""
    for name, content in {**LIMITS[kind], "own": "4:memory:/\n0::/a/b\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(str(content))
    monkeypatch.setattr(machine, "_GROUPS", tmp_path)
    monkeypatch.setattr(machine, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * GIB, available=32 * GIB))
    free, total = (32, 64) if kind == "none" else (3.5, 8)
    assert (memory.get_free_memory(), memory.get_total_memory()) == (free * GIB, total * GIB)


IDENTITY = {"model": "photographs", "sizes": (64, 64)}


def test_results_are_there_in_the_next_run_of_the_same_settings_alone(tmp_path):
    ledger = Ledger(path := tmp_path / "results.jsonl", IDENTITY)
    ledger.add(["a cat", 0], {"seconds": 1.5, "psnr_db": math.inf})
    ledger.add(["a cat", 1], 1)
    ledger.add(["a cat", 1], 2)
    ledger = Ledger(path, IDENTITY)
    assert (ledger[["a cat", 0]], ledger[["a cat", 1]]) == ({"seconds": 1.5, "psnr_db": math.inf}, 2)
    assert ["a cat", 2] not in ledger
    with pytest.raises(UserError, match=r"with model photographs, and this run has other$"):
        Ledger(path, {"model": "other"})
    assert ["a cat", 1] not in Ledger(path, {"model": "other"}, overwrite=True)


@pytest.mark.parametrize("content", [b"", b'{"n": 1}\n{"n": 2}\n', b'{"identity": 1}\n', b'{"identity": {}}\n{"key'])
def test_a_file_of_the_users_is_not_touched(tmp_path, content):
    (path := tmp_path / "results.jsonl").write_bytes(content)
    with pytest.raises(UserError, match="is no file of results of this program"):
        Ledger(path, IDENTITY)
    assert path.read_bytes() == content

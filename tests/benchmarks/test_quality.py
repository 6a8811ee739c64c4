"""``quality``: what its statistics tell apart, and how the images are resumed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import quality, step_caches
from benchmarks.quality_statistics import RealImages, Sample, compare, draw_counts, judge
from ppdiffusers_tome import ToMeError

CLASSES, IMAGES, FEATURES = 6, 12, 96
CENTRES = np.random.default_rng(0).standard_normal((CLASSES, FEATURES)) * 2


def make_features(images_per_class: int, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal((CLASSES, images_per_class, FEATURES))
    return (CENTRES[:, None] + noise).reshape(-1, FEATURES)


@pytest.fixture(scope="module")
def real() -> RealImages:
    labels = np.repeat(np.arange(CLASSES), 40)
    return RealImages(make_features(40, seed=1), labels, np.arange(len(labels)) % 10 == 0)


def measure(real: RealImages, features: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
    return Sample(real, features, IMAGES).measure(draw_counts(CLASSES, IMAGES, 400, seed))


def test_a_shifted_sample_is_told_apart_and_an_equal_one_is_not(real: RealImages) -> None:
    assert real.accuracy == real.accuracy_by_class == 1
    features = make_features(IMAGES, seed=2)
    base = measure(real, features)
    equal = compare(measure(real, make_features(IMAGES, seed=3)), base, IMAGES)
    assert judge(equal) == "equal"
    assert all(each.low < each.value < each.high for name, each in equal.items() if name != "recognised")
    shifted = compare(measure(real, features + 0.3), base, IMAGES)
    assert judge(shifted) == "worse: energy distance, Fréchet distance"
    assert shifted["energy distance"].value > 0
    assert judge(compare(base, measure(real, features + 0.3), IMAGES)) == "better: energy distance, Fréchet distance"


def test_distances_of_the_real_distribution_are_near_zero(real: RealImages) -> None:
    base, far = measure(real, make_features(IMAGES, seed=2)), measure(real, make_features(IMAGES, seed=2) + 1)
    assert abs(base["energy distance"][0]) < 0.1 * far["energy distance"][0]
    assert 0 < base["Fréchet distance"][0] < far["Fréchet distance"][0]


def test_another_class_is_not_recognised(real: RealImages) -> None:
    features = make_features(IMAGES, seed=2)
    found = compare(measure(real, np.roll(features, IMAGES, axis=0)), measure(real, features), IMAGES)
    assert found["recognised"].value == found["recognised"].high == pytest.approx(-1)
    assert found["energy distance"].value == pytest.approx(0, abs=1e-4)  # of the classes together
    assert judge(found) == "worse: recognised"


def test_pairing_by_noise_narrows_the_interval(real: RealImages) -> None:
    features = make_features(IMAGES, seed=2)
    changed = features + 0.1 * make_features(IMAGES, seed=3)
    base = measure(real, features)
    paired, unpaired = (compare(measure(real, changed, seed), base, IMAGES) for seed in (0, 1))
    for name in ("energy distance", "Fréchet distance"):
        assert paired[name].value == unpaired[name].value
        assert paired[name].high - paired[name].low < 0.5 * (unpaired[name].high - unpaired[name].low)


def test_one_image_of_each_class_has_no_interval(real: RealImages) -> None:
    samples = [Sample(real, make_features(1, seed), 1).measure(draw_counts(CLASSES, 1, 0)) for seed in (2, 3)]
    found = compare(*samples, 1)
    assert all(math.isnan(each.low) for each in found.values())
    assert judge(found) == "unknown"


def test_the_table_has_the_seeds_of_all_settings(
    real: RealImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del real
    monkeypatch.setattr(quality, "FOLDER", tmp_path)
    monkeypatch.setattr(quality, "NUM_RESAMPLES", 200)
    labels = np.repeat(np.arange(CLASSES), 40)
    real_features = tmp_path / "real.npz"
    np.savez(real_features, features=make_features(40, seed=1), labels=labels, classes=np.arange(CLASSES),
             is_held_out=np.arange(len(labels)) % 10 == 0)  # fmt: skip
    for setting, seeds, shift in (("unmerged", 9, 0), ("balanced", 8, 0.01), ("16 steps", 8, 0.5)):
        folder = tmp_path / "features/ddim" / setting
        folder.mkdir(parents=True)
        for seed in range(seeds):
            psnr = np.full(CLASSES, np.inf if setting == "unmerged" else 20 + seed)
            np.savez(folder / f"{seed}.npz", features=make_features(1, seed) + shift, psnr=psnr)
    costs = {"unmerged": 2, "balanced": 1, "16 steps": 1}
    quality.write_table(
        tmp_path / "seconds.csv",
        [{"scheduler": "ddim", "setting": name, "seconds": str(value)} for name, value in costs.items()],
    )
    paths = ["--features", str(tmp_path / "features"), "--real", str(real_features), "--output", str(tmp_path)]
    quality.main(["table", *paths])
    unmerged, balanced, fewer = quality.read_table(tmp_path / "ddim.csv")
    assert {row["images"] for row in (unmerged, balanced, fewer)} == {str(8 * CLASSES)}
    assert (balanced["psnr"], balanced["lowest"], balanced["recognised"]) == ("23.5", "20.0", "1.000")
    assert (unmerged["psnr"], unmerged["verdict than unmerged"]) == ("", "")
    assert fewer["verdict than unmerged"].startswith("worse: energy distance")
    assert (balanced["verdict than unmerged"], balanced["fewer steps at its cost"]) == ("equal", "16 steps")
    assert balanced["verdict than fewer steps"].startswith("better: energy distance")


def test_fewer_steps_are_the_most_that_cost_no_more() -> None:
    seconds = {"unmerged": 4.0, "16 steps": 3.2, "12 steps": 2.4, "10 steps": 2.0, "8 steps": 1.6, "5 steps": 1.0}
    seconds |= {"balanced": 3.15, "quality": 0.5, "ratio=0.5": 4.5}
    assert quality.find_fewer_steps("balanced", seconds) == "16 steps"
    assert quality.find_fewer_steps("ratio=0.5", seconds) == "16 steps"  # fewer, also where a setting costs more
    assert quality.find_fewer_steps("quality", seconds) == quality.find_fewer_steps("12 steps", seconds) == ""


@pytest.mark.once
def test_generate_writes_each_seed_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step_caches, "list_emoji_classes", lambda: ["car", "bird"])
    arguments = ["generate", "--settings", "5 steps", "--output", str(tmp_path), "--seeds", "0"]
    quality.main([*arguments, "1"])
    first = tmp_path / "ddim/5 steps/0.npy"
    assert np.load(first).shape == (2, 128, 128, 3)
    written = first.stat().st_mtime_ns
    quality.main([*arguments, "2"])
    assert first.stat().st_mtime_ns == written
    assert sorted(tmp_path.rglob("*.*")) == [first, first.with_name("1.npy")]
    assert not np.array_equal(np.load(first), np.load(first.with_name("1.npy")))
    capsys.readouterr()
    quality.main(["compare", "--images", str(tmp_path), "--other", str(tmp_path)])
    assert capsys.readouterr().out == "ddim, 5 steps: inf (inf) dB, 4 images\n"
    enlarge = ["--enlarge", str(first.parent), "--classes", "bird"]
    quality.main([*arguments[:3], "--seeds", "0", "1", *enlarge, "--output", str(tmp_path / "larger")])
    (image,) = np.load(tmp_path / "larger/ddim/5 steps/0.npy")
    made_small = image.reshape(128, 2, 128, 2, 3).mean((1, 3))
    assert np.abs(made_small - np.load(first)).mean((1, 2, 3)).argmin() == 1  # nearer to the bird than to the car


def test_settings_are_those_of_their_names() -> None:
    variants = {name: quality.make_variant(name) for name in quality.SETTINGS}
    assert variants["unmerged"].config is None
    assert (variants["5 steps"].steps, variants["5 steps"].config) == (5, None)
    assert variants["ratio=0.5"].config.ratio == 0.5
    assert variants["cache=0.2"].config.cache == 0.2
    several = quality.make_variant("balanced, end=0.9, use_rand=False, 12 steps")
    assert (several.steps, several.config.sx, several.config.end, several.config.use_rand) == (12, 3, 0.9, False)
    with pytest.raises(ToMeError, match="balancd"):
        quality.make_variant("balancd")
    assert all(variants[name].steps == 20 for name in quality.SETTINGS if name not in quality.FEWER)

"""Compare generated with real images by their features, with confidence intervals.

Of samples of images of the same classes and noise: the share that a linear probe recognises, and the energy and Fréchet
distances to the real images of the same classes. It needs numpy and scikit-learn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

NUM_COMPONENTS = 64  # of the Fréchet distance, whose covariances a few hundred images must tell
PROBE_STRENGTH = 0.01  # scikit-learn's C
COVERAGE = 0.95
MEASURES = {"recognised": +1, "energy distance": -1, "Fréchet distance": -1}  # +1 where more is better


class RealImages:
    """Real images by which generated ones are judged, every class counting the same.

    Args:
        features: ``[images, features]``.
        labels: ``[images]``, from 0.
        is_held_out: ``[images]``, True of those that the probe does not see.
    """

    def __init__(self, features: np.ndarray, labels: np.ndarray, is_held_out: np.ndarray) -> None:
        from sklearn.linear_model import LogisticRegression

        features, labels = features.astype(np.float32), labels.astype(np.int64)
        self._mean, self._scale = features[~is_held_out].mean(0), features[~is_held_out].std(0) + 1e-6
        self._features = self.standardize(features)
        self._probe = LogisticRegression(C=PROBE_STRENGTH, max_iter=2000)
        self._probe.fit(self._features[~is_held_out], labels[~is_held_out])

        found = self.recognise(self._features[is_held_out])
        is_right, held_out = found == labels[is_held_out], labels[is_held_out]
        self.accuracy = float(is_right.mean())  # of the held-out images
        self.accuracy_by_class = float(np.mean([is_right[held_out == each].mean() for each in np.unique(held_out)]))

        self._weights = 1 / np.bincount(labels)[labels] / len(np.unique(labels))
        centre = self._weights @ self._features
        covariance = (self._features - centre).T * self._weights @ (self._features - centre)
        values, vectors = np.linalg.eigh(covariance)
        self._components, kept = vectors[:, -NUM_COMPONENTS:], values[-NUM_COMPONENTS:]
        self.centre, self.deviations = centre @ self._components, np.sqrt(kept.clip(0))
        distances = compute_distances(self._features, self._features)
        self.spread = float(self._weights @ distances @ self._weights / (1 - (self._weights**2).sum()))

    def standardize(self, features: np.ndarray) -> np.ndarray:
        return (features.astype(np.float32) - self._mean) / self._scale

    def recognise(self, standardized: np.ndarray) -> np.ndarray:
        """Return the class of each image as the probe sees it."""
        return self._probe.predict(standardized)

    def find_components(self, standardized: np.ndarray) -> np.ndarray:
        return standardized @ self._components

    def find_distances(self, standardized: np.ndarray) -> np.ndarray:
        """Return each image's mean distance to the real ones."""
        return compute_distances(standardized, self._features) @ self._weights


class Sample:
    """The images of a setting, resampled by counts.

    Args:
        real: what they are compared with.
        features: ``[classes * images_per_class, features]``, class by class.
        images_per_class: of each class, by the same noise in every sample.
    """

    def __init__(self, real: RealImages, features: np.ndarray, images_per_class: int) -> None:
        standardized = real.standardize(features)
        labels = np.arange(len(features)) // images_per_class
        self._real = real
        self._is_recognised = real.recognise(standardized) == labels
        self._components = real.find_components(standardized)
        self._to_real, self._within = real.find_distances(standardized), compute_distances(standardized, standardized)

    def measure(self, counts: np.ndarray) -> dict[str, np.ndarray]:
        """Return each of ``MEASURES``, ``[resamples]``.

        Args:
            counts: how often each image counts, int ``[resamples, images]``.
        """
        size = counts.shape[1]
        weights = counts / size
        within = ((weights @ self._within) * weights).sum(1) * size / (size - 1)
        return {
            "recognised": weights @ self._is_recognised,
            "energy distance": 2 * weights @ self._to_real - within - self._real.spread,
            "Fréchet distance": np.array([self._measure_frechet_distance(each) for each in weights]),
        }

    def _measure_frechet_distance(self, weights: np.ndarray) -> float:
        """Heusel et al. 2017, of principal components in which the real covariance is diagonal."""
        mean, deviations = weights @ self._components, self._real.deviations
        centred = self._components - mean
        covariance = (centred.T * weights) @ centred * len(weights) / (len(weights) - 1)
        roots = np.sqrt(np.linalg.eigvalsh(deviations[:, None] * covariance * deviations).clip(0))
        squares = ((mean - self._real.centre) ** 2).sum()
        return float(squares + np.trace(covariance) + (deviations**2).sum() - 2 * roots.sum())


@dataclass(frozen=True)
class Difference:
    """A measure of a sample less that of another, and its interval.

    ``low`` and ``high`` are NaN where a class has one image.
    """

    value: float
    low: float
    high: float

    @property
    def is_told_apart(self) -> bool:
        return self.low > 0 or self.high < 0


def draw_counts(num_classes: int, images_per_class: int, num_resamples: int, seed: int = 0) -> np.ndarray:
    """Draw each image's counts in a bootstrap within classes.

    They are ``[1 + num_resamples, images]``; in the first row every image counts once.
    """
    shares, size = np.full(images_per_class, 1 / images_per_class), (num_resamples, num_classes)
    drawn = np.random.default_rng(seed).multinomial(images_per_class, shares, size)
    once = np.ones((1, num_classes * images_per_class), int)
    return np.concatenate([once, drawn.reshape(num_resamples, once.size)])


def compare(
    measured: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], images_per_class: int
) -> dict[str, Difference]:
    """Compare what two samples measure in the same resamples, which pairs them by noise.

    A bootstrap of few images varies too little, by ``(n - 1) / n`` in its variance, and distances have a bias in it;
    so the interval is that of the deviations from its mean, widened.
    """
    found = {}
    for name in MEASURES:
        value, *resampled = measured[name] - other[name]
        low = high = math.nan
        if images_per_class > 1:
            deviations = (resampled - np.mean(resampled)) * math.sqrt(images_per_class / (images_per_class - 1))
            low, high = value + np.quantile(deviations, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
        found[name] = Difference(float(value), float(low), float(high))
    return found


def judge(differences: Mapping[str, Difference]) -> str:
    """Say which measures tell two samples apart: ``equal`` if none."""
    verdicts: dict[str, list[str]] = {}
    for name, each in differences.items():
        if math.isnan(each.low):
            return "unknown"
        if each.is_told_apart:
            verdicts.setdefault("better" if each.value * MEASURES[name] > 0 else "worse", []).append(name)
    return "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in verdicts.items()) or "equal"


def compute_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return Euclidean distances ``[len(a), len(b)]``."""
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return np.sqrt(squares.clip(0))

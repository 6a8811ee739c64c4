"""The steps that a cache over steps computes. Imports no Paddle."""

from collections.abc import Sequence

MIN_STEPS = 9  # with fewer, no step is skipped
# Schedulers that go on with the noise of earlier steps, and so with the errors of skipped or merged ones.
NOISE_HISTORIES = ("PNDMScheduler", "IPNDMScheduler", "LMSDiscreteScheduler")
HIGHEST_SHARE = 0.2  # of skipped steps; more loses to fewer steps in some regimes of docs/en/results/step-caches.md

# The kinds of denoisers whose early and late steps matter differently.
FAMILIES = UNET, CLASS_TRANSFORMER, TEXT_TRANSFORMER = (
    "UNet", "class-conditional transformer", "transformer of images or videos from text",
)  # fmt: skip
# Of a model that predicts noise every second step is skipped: the highest share of steps for which that is so, and the
# progress of the last step that is skipped. An error of predicted noise counts in the image by the ratio of noise and
# signal, so early steps are the worst to skip; and in the last steps of real models most changes.
_EVERY_SECOND = {UNET: (0.2, 0.86), CLASS_TRANSFORMER: (0.3, 0.945), TEXT_TRANSFORMER: (0.2, 0.86)}
# How densely other steps are computed, as points of progress and density, interpolated linearly. UNets and
# class-conditional transformers: chosen by the worst regime of docs/en/results/step-caches.md. The latter, and those
# with a text, also by the errors that others measured on DiT-XL/2, FLUX.1-dev and Wan2.1 (arXiv 2512.23258).
_DENSITIES: dict[str, tuple[tuple[float, float], ...]] = {
    UNET: ((0.0, 0.15), (0.2, 0.3), (0.28, 1.0), (0.6, 1.0), (0.7, 0.5), (1.0, 0.6)),
    CLASS_TRANSFORMER: ((0.0, 0.1), (0.1, 0.1), (0.2, 0.52), (0.5, 0.38), (0.85, 0.28), (0.93, 0.85), (1.0, 0.85)),
    TEXT_TRANSFORMER: ((0.0, 1.0), (0.34, 1.0), (0.38, 0.25), (0.85, 0.25), (0.95, 1.0), (1.0, 1.0)),
}
_NOISE_UNET_DENSITY = ((0.0, 1.0), (0.3, 0.6), (0.6, 0.25), (1.0, 0.2))


def explain_noise_history(scheduler: str) -> str:
    """Say what one of ``NOISE_HISTORIES`` does, and what to write instead."""
    return (
        f"{scheduler} goes on with the noise of earlier steps, and so with what merging or a cache changes in it: "
        "images keep more with pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config), on the command line "
        "--scheduler ddim"
    )


def choose_computed_steps(
    num_steps: int, cache: float, family: str = UNET, *, predicts_noise: bool = False
) -> frozenset[int]:
    """Choose the steps of a denoising that are computed.

    A fraction ``cache`` is skipped. The first and the last are always computed. Where the model predicts noise (others:
    a velocity, or the image) and the fraction is small, every second step is skipped, late in the denoising. Otherwise
    the last two are computed, and those between are spread by the density of the family.

    Example:
        >>> sorted(choose_computed_steps(20, 0.2, predicts_noise=True))
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15, 17, 18, 19]
    """
    # At least four: the first, the last two, and one between them.
    count = num_steps if num_steps < MIN_STEPS else max(num_steps - round(cache * num_steps), 4)
    if count == num_steps:
        return frozenset(range(num_steps))
    highest_share, last_progress = _EVERY_SECOND[family]
    if predicts_noise and cache <= highest_share:
        last = min(num_steps - 2, round(last_progress * (num_steps - 1)))
        return frozenset(range(num_steps)) - frozenset(range(last, last - 2 * (num_steps - count), -2))
    import numpy as np  # not by ``ppdiffusers-tome --help``

    points = _NOISE_UNET_DENSITY if predicts_noise and family == UNET else _DENSITIES[family]
    between = np.interp(np.arange(1, num_steps - 2) / (num_steps - 1), *np.transpose(points)).tolist()
    return frozenset([0, num_steps - 2, num_steps - 1, *(step + 1 for step in _spread(count - 3, between))])


def _spread(count: int, densities: Sequence[float]) -> list[int]:
    """Choose places, the closer together the higher the density there."""
    low, high = 0.0, count / min(densities)
    for _ in range(60):  # bisect the factor with which the densities, each at most 1, add up to the count
        middle = (low + high) / 2
        is_less = sum(min(1.0, middle * density) for density in densities) < count
        low, high = (middle, high) if is_less else (low, middle)
    places: list[int] = []
    owed = 0.5
    for place, density in enumerate(densities):
        owed += min(1.0, high * density)
        if owed >= 1 and len(places) < count:
            places.append(place)
            owed -= 1
    return places

"""Pipelines called by threads, and pipelines that share a UNet."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from ppdiffusers import EulerDiscreteScheduler

import tiny
from patching.helpers import count_queries
from pipelines.image_numbers import SETTINGS, SIZES, STEPS, draw
from ppdiffusers_tome import apply_tome, remove_tome, shared_copy


@pytest.mark.parametrize("name", SETTINGS)
def test_threads_have_a_shared_copy_each(name: str) -> None:
    """Each image is what it is when it is drawn alone; the threads start together, at sizes of their own."""
    pipe = tiny.pipeline()
    plain = [draw(pipe, number) for number in range(len(SIZES))]
    pipe.apply_tome(**SETTINGS[name])
    alone = [draw(pipe, number) for number in range(len(SIZES))]
    assert all(np.abs(one - other).max() > 1e-4 for one, other in zip(alone, plain, strict=True))
    together = threading.Barrier(len(SIZES))
    copies = [shared_copy(pipe).apply_tome(**SETTINGS[name]) for _ in SIZES]

    def call(number: int) -> list[np.ndarray]:
        together.wait(timeout=300)
        return [draw(copies[number], number) for _ in range(3)]

    with ThreadPoolExecutor(len(SIZES)) as pool:
        for number, images in enumerate(pool.map(call, range(len(SIZES)))):
            for image in images:
                assert np.abs(image - alone[number]).max() <= 1e-5
    pipe.remove_tome()
    assert np.array_equal(draw(pipe, 0), plain[0])


@pytest.mark.parametrize("name", SETTINGS)
def test_one_pipeline_draws_between_two_steps_of_another_with_its_unet(name: str) -> None:
    """Whatever is kept over the steps of an image must not end up in the image drawn meanwhile, nor get lost."""
    one, scheduler = tiny.pipeline(), EulerDiscreteScheduler.from_config(tiny.scheduler().config)
    other = tiny.pipeline(unet=one.unet, scheduler=scheduler)
    one.apply_tome(**SETTINGS[name])
    alone = draw(one, 0), draw(other, 0)
    between: list[np.ndarray] = []

    def step_ended(*_: Any) -> dict[str, Any]:
        between.append(draw(other, 0, num_inference_steps=STEPS))
        return {}

    interrupted = draw(one, 0, callback_on_step_end=step_ended)
    assert len(between) == STEPS
    assert np.abs(interrupted - alone[0]).max() <= 1e-5
    assert all(np.array_equal(image, alone[1]) for image in [*between, draw(other, 0)])


def test_another_ratio_between_two_steps_holds_from_the_next_one() -> None:
    """Settings may change while an image is drawn: each step is of one setting, none of a mixture."""
    pipe, ratios = tiny.pipeline().apply_tome(0.5), iter([0.25, 0.0, 0.7])
    blocks = [f"unet.{path}" for path in pipe.tome.entries[0].paths]

    def step_ended(*_: Any) -> dict[str, Any]:
        ratio = next(ratios)
        apply_tome(pipe, ratio) if ratio else remove_tome(pipe)
        return {}

    with count_queries(pipe) as counts:
        draw(pipe, 0, callback_on_step_end=step_ended)
    assert [counts[block] for block in blocks] == [[128, 192, 256]] * 3

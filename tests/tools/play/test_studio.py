"""What the page draws: the pictures of the other commands, one at a time, measured, and cancelled when asked to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.play.jobs import WAITING, Job, Line
from ppdiffusers_tome.tools.play.requests import Guide, Order, RefusedError, Wanted
from ppdiffusers_tome.tools.play.sessions import Desk, Desks
from ppdiffusers_tome.tools.play.studio import MAP, MERGED, UNMERGED, WARMING_UP, Studio
from tools.cli.conftest import write_dit
from tools.play.conftest import studio_of, until

HALF = ToMeConfig(ratio=0.5)


def done(job: Job, studio: Studio) -> Job:
    job.carry_out(studio)
    assert job.failure is None
    assert job.finished
    return job


def pixels(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture)


def test_pictures_are_those_that_the_pipeline_draws(studio: Studio, order: Callable[..., Order]) -> None:
    job = done(Job(order(seed=3)), studio)
    studio.plain.apply(None)
    alone = replace(studio.plain, settings=replace(studio.plain.settings, seed=3))
    unmerged = alone.generate(studio.prompt, 0, None).image
    studio.plain.apply(HALF)
    merged = alone.generate(studio.prompt, 0, None).image
    assert job.unmerged is not None
    assert job.merged is not None
    assert np.array_equal(pixels(job.unmerged.drawn.image), pixels(unmerged))
    assert np.array_equal(pixels(job.merged.image), pixels(merged))
    assert not np.array_equal(pixels(unmerged), pixels(merged))
    assert job.merged.similarity is not None
    assert 10 < job.merged.similarity.psnr < 100
    assert min(job.merged.seconds, job.unmerged.drawn.seconds) > 0


def test_edges_guide_and_the_same_denoiser_draws_without_them(
    studio: Studio, order: Callable[..., Order], bright_square: Image.Image
) -> None:
    assert studio.guided is not None
    assert studio.plain.pipe.unet is studio.guided.pipe.unet
    guide = Guide(bright_square, 100, 200, 1.0)
    free, guided = (done(Job(order(guide=each)), studio).merged for each in (None, guide))
    assert free is not None
    assert guided is not None
    assert not np.array_equal(pixels(free.image), pixels(guided.image))
    weak = done(Job(order(guide=replace(guide, scale=0.0))), studio).unmerged
    assert weak is not None
    plain = studio.unmerged(order().wanted, _silent)
    assert np.abs(pixels(weak.drawn.image).astype(int) - pixels(plain.drawn.image)).max() <= 1


def _silent(stage: str, done: int, calls: int) -> None:
    pass


def test_the_map_is_of_the_merged_picture_by_step(studio: Studio, order: Callable[..., Order]) -> None:
    job = done(Job(order(with_map=True, steps=3)), studio)
    assert job.map is not None
    assert list(job.map.by_call) == [1, 2, 3]
    for pictures in job.map.by_call.values():
        assert [shown.block.denoiser for shown in pictures] == ["unet"]
        for shown in pictures:
            assert shown.picture is not None
            assert shown.merged_away == shown.tokens // 2
    assert job.map.often[0].merged_away == job.map.often[0].tokens // 2


def test_of_many_steps_the_map_shows_some(studio: Studio, order: Callable[..., Order]) -> None:
    merged = studio.merged_map(order(steps=14).wanted, HALF, _silent)
    assert merged is not None
    assert (len(merged.by_call), merged.calls, max(merged.by_call)) == (12, 14, 14)


def test_there_is_no_map_of_what_makes_no_groups(studio: Studio, order: Callable[..., Order]) -> None:
    job = done(Job(order(tome=ToMeConfig.named("balanced"), with_map=True)), studio)
    assert job.map is None


def test_a_remembered_picture_is_not_drawn_again(studio: Studio, order: Callable[..., Order]) -> None:
    first = done(Job(order(seed=5)), studio)
    desk = Desk(job=first)
    assert desk.unmerged(order(seed=6).wanted) is None
    again = order(seed=5, tome=ToMeConfig(ratio=0.25))
    second = Job(again, desk.unmerged(again.wanted))
    stages = []
    second.report = lambda stage, done, calls: stages.append(stage)  # type: ignore[method-assign]
    done(second, studio)
    assert second.remembered
    assert second.unmerged is first.unmerged
    assert UNMERGED not in stages
    assert MERGED in stages


def test_what_is_drawn_for_the_first_time_warms_up_once(studio: Studio, order: Callable[..., Order]) -> None:
    stages: list[tuple[str, int, int]] = []
    wanted = order(steps=2, height=72).wanted
    for _ in range(2):
        studio.unmerged(wanted, lambda *report: stages.append(report))
    assert stages == [
        (WARMING_UP, 0, 1), (WARMING_UP, 1, 1),
        *[(UNMERGED, 0, 2), (UNMERGED, 1, 2), (UNMERGED, 2, 2)] * 2,
    ]  # fmt: skip


def test_a_cancelled_drawing_ends_after_the_step(studio: Studio, order: Callable[..., Order]) -> None:
    line = Line(studio)
    try:
        long, other, waiting = (Job(order(steps=200, seed=seed)) for seed in range(3))
        last = Job(order(with_map=True))
        for job in (long, other, waiting, last):
            line.add(job)
        assert line.before(waiting) == 2
        until(lambda: long.stage == UNMERGED and long.done > 0)
        assert other.stage == WAITING
        long.cancel()
        other.cancel()
        waiting.cancel()
        until(lambda: last.ended)
        assert long.ended
        assert not long.finished
        assert long.done < 200
        assert waiting.stage == WAITING
        assert last.finished
        assert last.stage == MAP
    finally:
        line.close()


def test_only_so_many_wait(studio: Studio, order: Callable[..., Order]) -> None:
    line = Line(studio)
    jobs = [Job(order(steps=200)) for _ in range(9)]
    try:
        for job in jobs:
            line.add(job)
        with pytest.raises(RefusedError) as refused:
            line.add(Job(order()))
        assert refused.value.reason == "full"
    finally:
        line.close()
    assert not any(job.finished for job in jobs)


def test_nobody_waits_for_what_was_cancelled(studio: Studio, order: Callable[..., Order]) -> None:
    line = Line(studio)
    drawn, *given_up = (Job(order(steps=200)) for _ in range(9))
    last = Job(order(steps=200))
    try:
        for job in (drawn, *given_up):
            line.add(job)
        for job in given_up:
            job.cancel()
        line.add(last)
        assert line.before(last) == 1
        assert all(job.ended for job in given_up)
        assert not drawn.over
    finally:
        line.close()


def test_a_failure_holds_words_alone(studio: Studio, order: Callable[..., Order]) -> None:
    job = Job(order(tome=ToMeConfig(ratio=0.5, st=2)))
    job.carry_out(studio)
    assert job.failure is not None
    assert job.failure.reason == "failed"
    detail = job.failure.values["detail"]
    assert isinstance(detail, str), "an error would hold the tensors that were there when it was raised"
    assert "several frames" in detail


def test_what_fails_is_a_refusal_and_the_next_is_drawn(
    studio: Studio, order: Callable[..., Order], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken, memory, none = Job(order()), Job(order()), Job(order(tome=ToMeConfig(max_downsample=8, start=0.9999)))
    with monkeypatch.context() as patch:
        patch.setattr(studio.plain.pipe, "vae", None)
        broken.carry_out(studio)
    assert broken.failure is not None
    assert broken.failure.reason == "broken"
    assert "Traceback" in capfd.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(studio.plain.pipe, "encode_prompt", _no_memory)
        memory.carry_out(studio)
    assert memory.failure is not None
    assert memory.failure.reason == "out_of_memory"
    done(none, studio)


def test_a_dit_draws_classes_also_after_one_was_cancelled(tmp_path: Path) -> None:
    write_dit(tmp_path, {"0": "cat", "1": "coffee"})
    studio = studio_of("--model", str(tmp_path), "--steps", "2")
    begin = studio.plain
    assert (studio.guided, studio.prompt) == (None, "cat")

    def ordered(what: str) -> Order:
        return Order(Wanted(what, None, 3, begin.height, begin.width, 2, 3.0), HALF, with_map=True)

    studio.check(ordered("coffee"))
    assert studio.odd(ordered("coffee").wanted) == {}
    report = Job.report
    for stage in (UNMERGED, MERGED, MAP):
        given_up = Job(ordered("cat"))

        def cancel_at(at: str, done: int, calls: int, job: Job = given_up, last: str = stage) -> None:
            if (at, done) == (last, 1):
                job.cancel()
            report(job, at, done, calls)

        given_up.report = cancel_at  # type: ignore[method-assign]
        given_up.carry_out(studio)
        assert (given_up.stage, given_up.finished, given_up.failure) == (stage, False, None)
    drawn = done(Job(ordered("coffee")), studio)
    assert drawn.unmerged is not None
    assert drawn.merged is not None
    assert drawn.map is not None
    assert list(drawn.map.by_call) == [1, 2]
    alone = replace(begin, guidance_scale=3.0, settings=replace(begin.settings, seed=3))
    for tome, picture in ((None, drawn.unmerged.drawn.image), (HALF, drawn.merged.image)):
        alone.apply(tome)
        assert np.array_equal(pixels(picture), pixels(alone.generate("1", 0, None).image))


def _no_memory(*_: object, **__: object) -> None:
    raise MemoryError


def test_pictures_that_cannot_fit_are_refused_before_they_wait(studio: Studio, order: Callable[..., Order]) -> None:
    studio.check(order())
    with pytest.raises(RefusedError) as refused:
        studio.check(order(height=80_000, width=80_000))
    assert refused.value.reason == "memory"


def test_odd_things_are_told(studio: Studio, order: Callable[..., Order]) -> None:
    flat = Guide(Image.new("RGB", (64, 64)), 100, 200, 1.0)
    odd = studio.odd(order(prompt="word " * 200, guide=flat).wanted)
    assert {"too_long", "other_size", "no_edges"} <= set(odd)
    native = studio.plain.pipe.unet.config.sample_size * 8
    assert studio.odd(order(height=native, width=native).wanted) == {}


def test_nothing_is_remembered_of_who_left(studio: Studio, order: Callable[..., Order]) -> None:
    desks = Desks()
    desk = desks.of("me")
    desk.job = Job(order())
    assert desks.of("me") is desk
    assert desks.of("you") is not desk
    desks.forget("me")
    assert desk.job.cancelled
    assert desks.of("me") is not desk
    for number in range(40):
        desks.of(str(number))
    assert len(desks) == 32


def test_whoever_waits_for_a_drawing_is_not_forgotten_for_others(order: Callable[..., Order]) -> None:
    desks = Desks()
    desk = desks.of("me")
    desk.job = Job(order())
    for number in range(40):
        desks.of(str(number))
    assert desks.of("me") is desk
    assert not desk.job.cancelled
    assert len(desks) == 32

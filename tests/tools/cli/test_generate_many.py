"""``generate --prompts`` with the bundled model: stopped in every way and resumed, on one process and on two."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from launching import on_ranks
from ppdiffusers_tome.tools.batch.generator import Generator
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation import model_loader
from ppdiffusers_tome.tools.images import read_settings
from tools.cli.conftest import PROMPT, SMALL, heard, pixels_of

ROCKET = "a photo of a rocket"
SUBJECTS = ("astronaut", "cat", "rocket", "motorcycle", "retina", "wall", "coins", "photographer")
# With a least similarity all images of a batch merge as many tokens as the one that merges most, so an image that was
# generated in another batch would show.
TOGETHER = ["--batch-size", "2", "--min-similarity", "0.95"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def many(tmp_path):
    """Run ``generate --prompts`` on lines given as objects; returns the exit code."""

    def run(lines, *arguments, folder="outputs"):
        return main(["generate", *SMALL, *to_arguments(tmp_path, lines, folder), *arguments])

    return run


def to_arguments(tmp_path, lines, folder="outputs"):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return ["--prompts", str(path), "--output", str(tmp_path / folder)]


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("scheduler", ["ddim", "euler-a"])
def test_batch_holds_what_each_line_gives_alone(many, generate, tmp_path, scheduler):
    lines = [{"prompt": PROMPT, "seed": 7}, {"prompt": ROCKET}, {"prompt": PROMPT, "seed": 2**62}]
    assert many(lines, "--batch-size", "3", "--seed", "4", "--scheduler", scheduler) == 0
    entries = read_lines(tmp_path / "outputs" / "manifest.jsonl")
    assert [(entry["prompt"], entry["seed"]) for entry in entries] == [(PROMPT, 7), (ROCKET, 5), (PROMPT, 2**62)]
    for number, entry in enumerate(entries):
        (alone,) = generate("--seed", str(entry["seed"]), "--scheduler", scheduler, prompts=(entry["prompt"],),
                            folder=f"alone-{number}")  # fmt: skip
        together = tmp_path / "outputs" / entry["file"]
        # Sums of a batch round otherwise on some processors (AMD EPYC), which a pixel here and there shows.
        differences = np.abs(pixels_of(together).astype(int) - pixels_of(alone))
        assert differences.max() <= 1
        assert np.count_nonzero(differences) <= differences.size / 1000
        settings = read_settings(together)
        assert settings.pop("manifest")["entry"]["batch"] == entry["batch"] == [1, 2, 3]
        assert settings == read_settings(alone)


@pytest.mark.once
def test_lines_have_their_own_settings_and_bad_ones_are_skipped(many, tmp_path, photo, capsys):
    lines = [
        {"prompt": PROMPT, "image": photo.name, "output": "Ünïcode name.png"},
        {"prompt": PROMPT, "height": 72, "width": 128, "ratio": 0, "negative_prompt": ROCKET},
        {"prompt": PROMPT, "height": 10**6, "width": 10**6},
        {"prompt": PROMPT, "image": "prompts.jsonl"},
        {"prompt": PROMPT, "output": "../outside.png"},
    ]
    assert many(lines, "--on-error", "skip", "--batch-size", "2") == 0
    outputs = tmp_path / "outputs"
    first, second = read_lines(outputs / "manifest.jsonl")
    assert (first["file"], first["image"], first["line"]) == ("Ünïcode name.png", photo.name, 1)
    assert read_settings(outputs / first["file"])["controlnet"]["edges"]["file"] == photo.name
    settings = read_settings(outputs / second["file"])
    assert (settings["height"], settings["width"], settings["tome"], settings["controlnet"]) == (72, 128, None, None)
    assert settings["negative_prompt"] == ROCKET
    errors = [(line["line"], line["error"]) for line in read_lines(outputs / "skipped.jsonl")]
    words = ("alone takes at least", "cannot be read", "a file")
    assert [(line, word in error) for (line, error), word in zip(errors, words, strict=True)] == [
        (3, True), (4, True), (5, True),
    ]  # fmt: skip
    assert not (tmp_path / "outside.png").exists()
    assert "2 of 5 images are in" in capsys.readouterr().out


def test_line_that_no_model_is_needed_to_refuse_stops_the_run_at_once(many, tmp_path, photo, capsys, monkeypatch):
    monkeypatch.setattr(model_loader, "load_pipeline", lambda *_, **__: pytest.fail("work was started"))
    (tmp_path / "cut.png").write_bytes(photo.read_bytes()[: photo.stat().st_size // 2])
    for bad, words in (
        ({"prompt": ROCKET, "image": "cut.png"}, "cut.png cannot be read"),
        ({"prompt": ROCKET, "image": "/dev/zero"}, "/dev/zero is not a file"),
        ({"prompt": ROCKET, "image": ""}, "is not a file"),
        ({"prompt": ROCKET, "height": 10**6, "width": 10**6}, "line 2: height 1000000 and width 1000000: "),
        ({"prompt": ""}, "line 2: it has no prompt"),
    ):
        assert many([{"prompt": ROCKET}, bad, bad]) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert words in error
        assert "(1 more bad lines)" in error
        assert not (tmp_path / "outputs").exists()


@pytest.mark.once
def test_full_disk_stops_the_run_which_then_resumes(many, tmp_path, capsys, monkeypatch):
    lines = [{"prompt": f"a photo of a {subject}", "negative_prompt": "red"} for subject in SUBJECTS[:4]]
    lines[3]["negative_prompt"] += " " * 20_000  # which its image holds: the second batch is half written
    command = ["generate", *SMALL, *to_arguments(tmp_path, lines), *TOGETHER]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, limits[1]))  # writing more fails as on a full disk
    try:
        assert main(command) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (line,) = heard(capsys.readouterr().err)
    assert "cannot be written (File too large); make room" in line
    assert [path.name[:6] for path in sorted((tmp_path / "outputs").glob("*.png"))] == ["000001", "000002", "000003"]
    assert many(lines, *TOGETHER) == 0
    assert "1 generated now, 3 before" in capsys.readouterr().out
    # A finished run needs no model.
    monkeypatch.setattr(model_loader, "load_pipeline", lambda *_, **__: pytest.fail("work was started"))
    assert many(lines, *TOGETHER) == 0


def wait_for(condition, process):
    ends = time.monotonic() + 400
    while not condition():
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < ends, "it takes too long"
        time.sleep(0.01)


def pid_of_rank(launcher, rank):
    for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
        if f"PADDLE_TRAINER_ID={rank}\0" in Path(f"/proc/{pid}/environ").read_text():
            return int(pid)
    raise AssertionError(f"there is no rank {rank}")


@pytest.mark.parametrize(
    "ranks", [pytest.param(1, marks=pytest.mark.once), pytest.param(2, marks=pytest.mark.sweep)]
)  # fmt: skip
def test_killed_run_resumes_and_ends_as_one_that_was_not(many, tmp_path, ranks):
    lines = [{"prompt": f"a photo of a {subject}"} for subject in SUBJECTS * 2]
    lines[-1] = {"prompt": PROMPT, "image": "nowhere.png"}  # of the last rank
    outputs = tmp_path / "outputs"
    program = ["-m", "ppdiffusers_tome", "generate", *SMALL, *to_arguments(tmp_path, lines), *TOGETHER]
    program += ["--on-error", "skip"]
    command = [sys.executable, *program] if ranks == 1 else on_ranks(ranks, tmp_path, *program)
    piped = {"env": ENVIRONMENT, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    first = subprocess.Popen(command, **piped)
    try:
        wait_for(lambda: any(outputs.glob("000003-*.png")), first)  # of rank 1, where there are two
        os.kill(first.pid if ranks == 1 else pid_of_rank(first, 1), signal.SIGKILL)
        first.communicate(timeout=400)
    finally:
        first.kill()
    finished = len(list(outputs.rglob("*.png")))
    assert 1 <= finished < len(lines) - 1
    second = subprocess.run(command, timeout=400, check=False, **piped)
    assert second.returncode == 0, second.stdout
    left = len(lines) - 1 - finished
    assert f"15 of 16 images are in {outputs}: {left} generated now, {finished} before" in second.stdout
    assert many(lines, *TOGETHER, "--on-error", "skip", folder="alone") == 0
    assert contents(outputs) == contents(tmp_path / "alone")


def test_out_of_memory_halves_the_batch(many, tmp_path, monkeypatch, capsys):
    generate = Generator.generate

    def fail_with_more_than_two(self, specs):
        if len(specs) > 2:
            raise MemoryError
        return generate(self, specs)

    monkeypatch.setattr(Generator, "generate", fail_with_more_than_two)
    assert many([{"prompt": ROCKET}] * 6, "--batch-size", "5") == 0
    assert "out of memory with 5 images at once; continuing with 3" in capsys.readouterr().err
    entries = read_lines(tmp_path / "outputs" / "manifest.jsonl")
    assert [entry["batch"] for entry in entries] == [[1, 2], [1, 2], [3], [4, 5], [4, 5], [6]]

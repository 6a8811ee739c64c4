"""``generate --prompts``: many pictures, stopped in every way and gone on with, on one process and on two."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from launching import on_ranks
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation import model_loader
from ppdiffusers_tome.tools.images import read_settings
from tools.cli.conftest import PROMPT, SMALL, heard, pixels_of

ROCKET = "a photo of a rocket"
SUBJECTS = ("astronaut", "cat", "rocket", "motorcycle", "retina", "wall", "coins", "photographer")
# With a least similarity all pictures of a batch merge as many tokens as the one that merges most, so a picture that
# was drawn in another batch would show.
TOGETHER = ["--batch-size", "2", "--min-similarity", "0.95"]
FOLDERS = ["--images-per-folder", "6"]


@pytest.fixture
def many(tmp_path: Path) -> Callable[..., int]:
    """Run ``generate --prompts`` on small pictures of lines given as objects; returns the exit code."""

    def run(lines: list[dict], *arguments: str, folder: str = "outputs") -> int:
        prompts = write_prompts(tmp_path, lines)
        return main(["generate", *SMALL, "--prompts", str(prompts), "--output", str(tmp_path / folder), *arguments])

    return run


def write_prompts(folder: Path, lines: list[dict]) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def manifest(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a full disk, writing fails: what is beyond that many bytes of a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("scheduler", ["ddim", "euler-a"])
def test_a_batch_draws_what_each_line_draws_alone(many, generate, tmp_path, scheduler):
    lines = [{"prompt": PROMPT, "seed": 7}, {"prompt": ROCKET}, {"prompt": PROMPT, "seed": 2**62}]
    assert many(lines, "--batch-size", "3", "--seed", "4", "--scheduler", scheduler) == 0
    entries = manifest(tmp_path / "outputs")
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
        assert settings.pop("manifest")["entry"]["batch"] == [1, 2, 3]
        assert settings == read_settings(alone)


@pytest.mark.once
def test_lines_have_settings_of_their_own_and_bad_ones_are_skipped(many, tmp_path, photo, capsys):
    lines = [
        {"prompt": PROMPT, "image": photo.name, "output": "Ünïcode name.png"},
        {"prompt": PROMPT, "height": 72, "width": 128, "ratio": 0, "negative_prompt": ROCKET},
        {"prompt": PROMPT},
        {"prompt": "a " * 100},
        {"prompt": PROMPT, "image": "prompts.jsonl"},
        {"prompt": PROMPT, "output": "../outside.png"},
    ]
    assert many(lines, "--on-error", "skip", "--batch-size", "2") == 0
    outputs = tmp_path / "outputs"
    first, second, third = manifest(outputs)
    assert (first["file"], first["image"], first["line"]) == ("Ünïcode name.png", photo.name, 1)
    settings = read_settings(outputs / "Ünïcode name.png")
    assert settings["controlnet"]["edges"]["file"] == photo.name
    settings = read_settings(outputs / second["file"])
    assert (settings["height"], settings["width"], settings["tome"], settings["controlnet"]) == (72, 128, None, None)
    assert settings["negative_prompt"] == ROCKET
    assert pixels_of(outputs / second["file"]).shape == (72, 128, 3)
    assert not np.array_equal(pixels_of(outputs / first["file"]), pixels_of(outputs / third["file"]))
    skipped = [json.loads(line) for line in (outputs / "skipped.jsonl").read_text().splitlines()]
    assert [each["line"] for each in skipped] == [4, 5, 6]
    for each, sentence in zip(skipped, ("102 tokens and the model reads 32", "as a picture", "/"), strict=True):
        assert sentence in each["error"]
    assert not (tmp_path / "outside.png").exists()
    captured = capsys.readouterr()
    for number in (4, 5, 6):
        assert f"prompts.jsonl, line {number} is skipped: " in captured.err
    assert "3 of 6 pictures are in" in captured.out
    # Mended, the same command draws them, and forgets that they were bad.
    lines[3:] = [{"prompt": ROCKET}, {"prompt": ROCKET}, {"prompt": ROCKET}]
    assert many(lines, "--on-error", "skip", "--batch-size", "2") == 0
    assert "6 of 6 pictures" in capsys.readouterr().out
    assert not (outputs / "skipped.jsonl").exists()


@pytest.mark.once
def test_pictures_of_somebody_elses_file_can_be_confined(many, tmp_path, photo, capsys):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "house.png").write_bytes(photo.read_bytes())
    (tmp_path / "theirs" / "link.png").symlink_to(photo)
    lines = [
        {"prompt": ROCKET, "image": "theirs/house.png"},
        {"prompt": ROCKET, "image": photo.name},
        {"prompt": ROCKET, "control_image": "theirs/link.png"},
        {"prompt": ROCKET, "image": str(photo)},
        {"prompt": ROCKET, "image": "theirs/../photo.png"},
    ]
    within = ["--image-root", str(tmp_path / "theirs")]
    assert many(lines, *within) == 2
    captured = capsys.readouterr()
    said = f"prompts.jsonl, line 2: '{tmp_path / photo.name}' is outside of --image-root '{tmp_path / 'theirs'}'"
    assert said in captured.err
    assert "(3 more lines are bad)" in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "outputs").exists()
    # The user's own --image is the user's word, for lines that name none.
    lines.append({"prompt": ROCKET})
    assert many(lines, *within, "--on-error", "skip", "--image", str(photo)) == 0
    outputs = tmp_path / "outputs"
    assert [entry["line"] for entry in manifest(outputs)] == [1, 6]
    skipped = [json.loads(line) for line in (outputs / "skipped.jsonl").read_text().splitlines()]
    assert [each["line"] for each in skipped] == [2, 3, 4, 5]
    assert all("is outside of --image-root" in each["error"] for each in skipped)
    # The same run without it draws them: it decides what is read, not what is drawn.
    assert many(lines, "--on-error", "skip", "--image", str(photo)) == 0
    assert [entry["line"] for entry in manifest(outputs)] == [1, 2, 3, 4, 5, 6]


def test_a_picture_that_has_become_a_link_is_refused_before_it_is_read(many, tmp_path, photo, capsys, monkeypatch):
    """Hours may lie between reading the file of prompts and drawing a line of it."""
    (tmp_path / "theirs").mkdir()
    house = tmp_path / "theirs" / "house.png"
    house.write_bytes(photo.read_bytes())
    load = model_loader.load_pipeline

    def swapped(*arguments, **keywords):
        house.unlink()
        house.symlink_to(photo)
        return load(*arguments, **keywords)

    monkeypatch.setattr(model_loader, "load_pipeline", swapped)
    assert many([{"prompt": ROCKET, "image": "theirs/house.png"}], "--image-root", str(tmp_path / "theirs")) == 2
    assert f"line 1: '{house}' is outside of --image-root" in capsys.readouterr().err
    assert not list((tmp_path / "outputs").glob("*.png"))


@pytest.mark.once
def test_a_bad_line_stops_the_run_which_then_goes_on(many, tmp_path, capsys):
    good = [{"prompt": f"a photo of a {subject}"} for subject in SUBJECTS[:4]]
    bad = [*good[:2], {"prompt": "a " * 100}, *good[3:]]
    assert many(bad, *TOGETHER) == 2
    captured = capsys.readouterr()
    (line,) = heard(captured.err)
    assert "prompts.jsonl, line 3: prompt has 102 tokens and the model reads 32" in line
    assert len(list((tmp_path / "outputs").glob("*.png"))) == 2
    assert many(good, *TOGETHER) == 0
    assert "2 drawn now, 2 before" in capsys.readouterr().out
    assert many(good, *TOGETHER, folder="whole") == 0
    assert contents(tmp_path / "outputs") == contents(tmp_path / "whole")


def test_what_cannot_be_drawn_is_found_before_anything_is_loaded(many, tmp_path, photo, capsys, monkeypatch):
    """The first line could be drawn, and its picture would be there when the second is met."""
    monkeypatch.setattr(model_loader, "load_pipeline", lambda *_, **__: pytest.fail("work was started"))
    cut = tmp_path / "cut.jpg"
    with Image.open(photo) as whole:
        whole.resize((800, 600)).save(cut)
    cut.write_bytes(cut.read_bytes()[:-2000])
    good = {"prompt": ROCKET, "image": photo.name}
    for bad, sentence in (
        ({"prompt": ROCKET, "image": cut.name}, f"line 2: --image {cut} cannot be read as a picture (image file is"),
        ({"prompt": ROCKET, "control_image": cut.name}, f"line 2: --control-image {cut} cannot be read as a picture"),
        ({"prompt": ROCKET, "height": 10**6, "width": 10**6}, "line 2: height 1000000 and width 1000000: the "),
    ):
        assert many([good, bad, good, bad]) == 2
        captured = capsys.readouterr()
        assert sentence in captured.err
        assert "(1 more line is bad)" in captured.err
        assert captured.err.count("\n") == 1
        assert not (tmp_path / "outputs").exists()


def test_what_is_odd_about_lines_is_told_once(many, tmp_path, photo, capsys):
    lines = [{"prompt": PROMPT}, *({"prompt": "a dog " * number, "image": photo.name} for number in (100, 3, 2))]
    assert many(lines, "--on-error", "skip") == 0
    skipped, words, shape = heard(capsys.readouterr().err)
    assert "line 2 is skipped: prompt has " in skipped
    assert words.startswith("warning: line 3: prompt 'a dog a dog a dog ' names none of the photographs that the ")
    assert words.endswith("(later lines may have the same fault and are not reported)")
    assert shape.startswith(f"warning: line 3: --image {photo} is 120x90 and the picture 64x64: its middle is used; ")


@pytest.mark.once
def test_a_full_disk_stops_cleanly_and_the_same_command_goes_on(many, tmp_path, capsys):
    lines = [{"prompt": f"a photo of a {subject}", "negative_prompt": "red"} for subject in SUBJECTS[:5]]
    lines[3]["negative_prompt"] += " " * 20_000  # which its picture keeps: the second batch is half written
    given = ["--prompts", str(write_prompts(tmp_path, lines)), "--output", str(tmp_path / "outputs"), *TOGETHER]
    with files_of_at_most(15_000):
        assert main(["generate", *SMALL, *given]) == 2
    captured = capsys.readouterr()
    (line,) = heard(captured.err)
    assert "cannot be written (File too large); make room" in line
    names = sorted(path.name for path in (tmp_path / "outputs").iterdir())
    assert [name for name in names if name.endswith(".png")] == [
        f"00000{number}-a-photo-of-a-{SUBJECTS[number - 1]}.png" for number in (1, 2, 3)
    ]
    assert names[3:] == ["chunks.jsonl", "manifest.jsonl", "manifest.part-0000.jsonl", "run.json"]
    assert many(lines, *TOGETHER) == 0
    assert "2 drawn now, 3 before" in capsys.readouterr().out
    assert many(lines, *TOGETHER, folder="whole") == 0
    assert contents(tmp_path / "outputs") == contents(tmp_path / "whole")


@pytest.mark.once
def test_a_lost_picture_of_a_batch_comes_back_the_same_and_the_other_is_not_touched(many, tmp_path):
    lines = [{"prompt": PROMPT}, {"prompt": ROCKET}]
    assert many(lines, *TOGETHER) == 0
    outputs = tmp_path / "outputs"
    whole = contents(outputs)
    first, second = (outputs / entry["file"] for entry in manifest(outputs))
    second.unlink()
    before = first.stat().st_mtime_ns
    assert many(lines, *TOGETHER) == 0
    assert contents(outputs) == whole
    assert first.stat().st_mtime_ns == before
    # That says something only where a picture alone is another.
    assert many(lines, "--batch-size", "1", *TOGETHER[2:], folder="alone") == 0
    assert not np.array_equal(pixels_of(tmp_path / "alone" / second.name), pixels_of(second))


def test_a_finished_run_has_nothing_to_do_and_needs_no_model(many, monkeypatch, capsys):
    lines = [{"prompt": PROMPT}]
    assert many(lines) == 0
    monkeypatch.setattr(model_loader, "load_pipeline", lambda *_, **__: pytest.fail("work was started"))
    capsys.readouterr()
    assert many(lines) == 0
    assert "1 of 1 pictures are in" in capsys.readouterr().out


def test_what_a_killed_run_left_half_written_is_told_in_one_line(many, tmp_path, capsys):
    lines = [{"prompt": PROMPT}]
    assert many(lines) == 0
    with (tmp_path / "outputs" / "manifest.jsonl").open("ab") as file:
        file.write(b'{"number": 2, "li')
    capsys.readouterr()
    assert many(lines) == 0
    captured = capsys.readouterr()
    manifest_file = tmp_path / "outputs" / "manifest.jsonl"
    assert captured.err.startswith(f"warning: {manifest_file}, line 2 is incomplete, ")
    assert captured.err.count("\n") == 1
    assert "1 of 1 pictures are in" in captured.out
    assert many(lines) == 0
    assert capsys.readouterr().err == ""


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def wait_for(what: Callable[[], bool], process: subprocess.Popen) -> None:
    ends = time.monotonic() + 400
    while not what():
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < ends, "it takes too long"
        time.sleep(0.01)


def has_drawn(outputs: Path, rank: int) -> bool:
    """Whether a rank has finished a picture; its part is gone when all have finished those of the first folder."""
    part = outputs / f"manifest.part-000{rank}.jsonl"
    return (part.exists() and b'"sha256"' in part.read_bytes()) or any(outputs.glob("*-*/"))


@pytest.mark.once
def test_killed_in_the_middle_the_same_command_ends_as_if_it_had_not_been(many, tmp_path, capsys):
    lines = [{"prompt": f"a photo of a {subject}"} for subject in SUBJECTS * 2]
    arguments = ["--prompts", str(write_prompts(tmp_path, lines)), "--output", str(tmp_path / "outputs"), *FOLDERS,
                 *TOGETHER]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "ppdiffusers_tome", "generate", *SMALL, *arguments], env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(lambda: has_drawn(tmp_path / "outputs", 0), process)
    finally:
        process.kill()
        process.wait()
    finished = len(list((tmp_path / "outputs").rglob("*.png")))
    assert 1 <= finished < len(lines)
    assert many(lines, *FOLDERS, *TOGETHER) == 0
    assert f"{len(lines) - finished} drawn now, {finished} before" in capsys.readouterr().out
    assert many(lines, *FOLDERS, *TOGETHER, folder="whole") == 0
    assert [len(list(folder.glob("*.png"))) for folder in sorted((tmp_path / "outputs").glob("*-*/"))] == [6, 4]
    assert contents(tmp_path / "outputs") == contents(tmp_path / "whole")


def launched(folder: Path, *arguments: str) -> subprocess.Popen:
    """Two ranks of Paddle's own launcher."""
    return subprocess.Popen(
        on_ranks(2, folder, "-m", "ppdiffusers_tome", "generate", *SMALL, *arguments),
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def pid_of_rank(launcher: subprocess.Popen, rank: int) -> int:
    """The launcher's process that is a rank."""
    for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
        if f"PADDLE_TRAINER_ID={rank}\0" in Path(f"/proc/{pid}/environ").read_text():
            return int(pid)
    raise AssertionError(f"there is no rank {rank}")


@pytest.mark.sweep
def test_two_ranks_share_the_lines_and_the_next_run_finishes_a_killed_ones(many, tmp_path):
    # Rank 1 has the second batch of every two.
    lines = [{"prompt": f"a photo of a {subject}"} for subject in SUBJECTS * 2]
    lines[-1] = {"prompt": "a " * 100}
    outputs = tmp_path / "outputs"
    arguments = [
        "--prompts", str(write_prompts(tmp_path, lines)), "--output", str(outputs), *FOLDERS, *TOGETHER, "--on-error",
        "skip",
    ]  # fmt: skip
    first = launched(tmp_path, *arguments)
    try:
        wait_for(lambda: has_drawn(outputs, 1), first)
        os.kill(pid_of_rank(first, 1), signal.SIGKILL)
        said = first.communicate(timeout=400)[0]
    finally:
        first.kill()
    assert first.returncode != 0, said
    assert "pictures are in" not in said
    finished = {path: path.stat().st_mtime_ns for path in outputs.rglob("*.png")}
    assert 1 <= len(finished) < len(lines) - 1
    second = launched(tmp_path, *arguments)
    said = second.communicate(timeout=400)[0]
    assert second.returncode == 0, said
    left = len(lines) - 1 - len(finished)
    assert f"15 of 16 pictures are in {outputs}: {left} drawn now, {len(finished)} before" in said
    assert "on 2 ranks; 1 skipped" in said
    assert all(path.stat().st_mtime_ns == written for path, written in finished.items())
    assert many(lines, *FOLDERS, *TOGETHER, "--on-error", "skip", folder="alone") == 0
    assert contents(outputs) == contents(tmp_path / "alone")


# The limit is what one picture at a time needed, and a little; more where freed memory cannot be used again.
SHORT_OF_MEMORY = """
import re, resource, sys
from ppdiffusers_tome.tools.cli.program import main
prompts, output = sys.argv[1:]
arguments = ["generate", "--height", "256", "--width", "256", "--steps", "1", "--ratio", "0", "--prompts", prompts]
assert main([*arguments, "--output", output + "-alone"]) == 0
needed = int(re.search(r"VmPeak:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
for more in (60, 120, 180):
    limit = needed + more * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    if main([*arguments, "--output", output, "--batch-size", "4"]) == 0:
        break
"""


@pytest.mark.sweep  # memory is really used up
def test_out_of_memory_halves_the_batch_and_says_so(tmp_path):
    prompts = write_prompts(tmp_path, [{"prompt": ROCKET}] * 4)
    command = [sys.executable, "-c", SHORT_OF_MEMORY, str(prompts), str(tmp_path / "outputs")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    assert "out of memory with 4 pictures at once; continuing with 2" in done.stderr
    entries = manifest(tmp_path / "outputs")
    assert len(entries) == 4, done.stderr
    assert {len(entry["batch"]) for entry in entries} <= {1, 2}
    for entry in entries:
        drawn, alone = (pixels_of(tmp_path / name / entry["file"]) for name in ("outputs", "outputs-alone"))
        # At this size, 256x256, a few values differ by 1 on some processors.
        np.testing.assert_allclose(drawn.astype(int), alone.astype(int), atol=1)
        assert np.mean(drawn != alone) < 1e-3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--prompt", PROMPT, "--prompts", "FILE"], "--prompt and --prompts were both given"),
        (["--prompts", "nowhere.jsonl"], "--prompts nowhere.jsonl cannot be read (No such file"),
        (["--prompts", "FILE", "--batch-size", "0"], "--batch-size 0 must be 1 or more"),
        (["--prompts", "FILE", "--images-per-folder", "0"], "--images-per-folder 0 must be from 1 to 7000"),
        (["--prompts", "FILE", "--images-per-folder", "7001"], "--images-per-folder 7001 must be from 1 to 7000"),
        (["--prompts", "FILE", "--on-error", "ignore"], "invalid choice: 'ignore'"),
        (["--prompts", "FILE", "--controlnet", "bundled"], "--controlnet needs edges"),
        (["--prompt", PROMPT, "--batch-size", "2"], "--batch-size 2 is for files of prompts"),
        (["--prompt", PROMPT, "--images-per-folder", "2"], "--images-per-folder 2 is for files of prompts"),
        (["--prompt", PROMPT, "--on-error", "skip"], "--on-error skip is for files of prompts"),
        (["--prompt", PROMPT, "--image-root", "."], "--image-root . is for files of prompts"),
        (["--prompts", "FILE", "--image-root", "nowhere"], "--image-root nowhere is not a folder"),
        (["--prompts", "FILE", "--image-root", __file__], "is not a folder; give the one with the pictures"),
        (["--prompts", "FILE", "--image-root", "x" * 300], "is not a folder"),
        (["--prompts", "BAD"], "line 2: it is not JSON"),
        (["--prompts", "BAD", "--images-per-folder", "1"], "line 2: it is not JSON"),
        (["--prompts", "IMAGE", "--model", "some/model"], "line 1: a control image needs a ControlNet"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(arguments, sentence, tmp_path, photo, capsys, monkeypatch):
    monkeypatch.setattr(model_loader, "load_pipeline", lambda *_, **__: pytest.fail("work was started"))
    files = {"FILE": f'{{"prompt": "{ROCKET}"}}', "BAD": f'{{"prompt": "{ROCKET}"}}\n{{"prompt"',
             "IMAGE": f'{{"prompt": "{ROCKET}", "image": "{photo.name}"}}'}  # fmt: skip
    for name, text in files.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    given = [str(tmp_path / f"{argument}.jsonl") if argument in files else argument for argument in arguments]
    output = tmp_path / "outputs"
    assert main(["generate", *SMALL, "--output", str(output), *given]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert not output.exists() or list(output.iterdir()) == []

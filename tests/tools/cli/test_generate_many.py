"""``generate --prompts`` with the small model: stopped and resumed, and on several processes."""

from __future__ import annotations

import json
import resource
from itertools import chain

import numpy as np
import pytest

from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.generation import model_loader
from ppdiffusers_tome.tools.images import read_settings
from tools.cli.conftest import PROMPT, ROCKET, SMALL, heard, pixels_of

SUBJECTS = ("astronaut", "cat", "rocket", "motorcycle", "retina", "wall", "coins", "photographer")


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


@pytest.mark.parametrize("scheduler", ["ddim", "euler-a"])
def test_batch_holds_what_each_line_gives_alone(many, generate, tmp_path, scheduler):
    lines = [{"prompt": PROMPT, "seed": 7}, {"prompt": ROCKET}, {"prompt": PROMPT, "seed": 2**62}]
    assert many(lines, "--batch-size", "3", "--seed", "4", "--scheduler", scheduler) == 0
    for file, line, seed in zip(sorted((tmp_path / "outputs").iterdir()), lines, (7, 5, 2**62), strict=True):
        (alone,) = generate("--seed", str(seed), "--scheduler", scheduler, prompts=(line["prompt"],),
                            folder=f"alone-{seed}")  # fmt: skip
        # Sums of a batch round otherwise on some processors (AMD EPYC), which a pixel here and there shows.
        differences = np.abs(pixels_of(file).astype(int) - pixels_of(alone))
        assert differences.max() <= 1
        assert np.count_nonzero(differences) <= differences.size / 1000
        assert read_settings(file) == read_settings(alone)


@pytest.mark.once
def test_lines_have_their_own_settings_and_bad_ones_are_skipped(many, tmp_path, photo, capsys):
    (tmp_path / "cut.png").write_bytes(photo.read_bytes()[: photo.stat().st_size // 2])
    lines = [
        {"prompt": PROMPT, "image": photo.name, "output": "Ünïcode name.png"},
        {"prompt": PROMPT, "height": 72, "width": 128, "ratio": 0, "negative_prompt": ROCKET},
        {"prompt": PROMPT, "image": "cut.png"},
        {"prompt": PROMPT, "image": "/dev/zero"},
        {"prompt": PROMPT, "output": "../outside.png"},
    ]
    assert many(lines, "--batch-size", "2") == 0
    outputs, captured = tmp_path / "outputs", capsys.readouterr()
    assert sorted(path.name for path in outputs.iterdir()) == ["000002-a-photo-of-a-cat.png", "Ünïcode name.png"]
    assert read_settings(outputs / "Ünïcode name.png")["controlnet"]["edges"]["file"] == photo.name
    settings = read_settings(outputs / "000002-a-photo-of-a-cat.png")
    assert (settings["height"], settings["width"], settings["tome"], settings["controlnet"]) == (72, 128, None, None)
    assert settings["negative_prompt"] == ROCKET
    for line, words in ((3, "cut.png cannot be read"), (4, "/dev/zero is no file"), (5, "the name of a file alone")):
        assert any(f"line {line} is skipped: " in said and words in said for said in captured.err.splitlines())
    assert not (tmp_path / "outside.png").exists()
    assert "2 images of " in captured.out
    assert "3 lines skipped" in captured.out
    said = [line for line in captured.out.splitlines() if "token merging" in line]
    merged = "token merging: unet has ratio 0.5 in 3 blocks; controlnet has ratio 0.5 in 1 block"
    assert said == ["no token merging", merged]


@pytest.mark.once
def test_full_disk_stops_the_run_which_then_resumes(many, tmp_path, capsys, monkeypatch):
    lines = [{"prompt": f"a photo of a {subject}", "negative_prompt": "red"} for subject in SUBJECTS[:4]]
    lines[3]["negative_prompt"] += " " * 20_000  # which its image holds
    command = ["generate", *SMALL, *to_arguments(tmp_path, lines), "--batch-size", "2"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, limits[1]))  # writing more fails as on a full disk
    try:
        assert main(command) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot be written (File too large); make room" in heard(capsys.readouterr().err)[-1]
    outputs = tmp_path / "outputs"
    assert [path.name[:6] for path in sorted(outputs.iterdir())] == ["000001", "000002", "000003"]
    assert many(lines, "--batch-size", "2") == 0
    assert "1 generated now" in capsys.readouterr().out
    # A finished run needs no model, and what is there with other settings is not taken for it.
    monkeypatch.setattr(model_loader, "load_pipeline", lambda *_, **__: pytest.fail("work was started"))
    assert many(lines) == 0
    for option, name in (("--tile", "tome"), ("--steps", "steps"), ("--seed", "seed")):
        assert many(lines, option, "9") == 2
        words = f"another {name} than line 1 asks for; give another --output, or replace it with --overwrite"
        assert words in capsys.readouterr().err
    (outputs / "000001-a-photo-of-a-astronaut.png").write_bytes(b"mine")
    assert many(lines) == 2
    assert (outputs / "000001-a-photo-of-a-astronaut.png").read_bytes() == b"mine"


@pytest.mark.once
def test_an_image_with_a_setting_is_not_that_of_a_line_without_it(many, capsys, monkeypatch):
    """What the model would choose is not known before it is loaded."""
    lines, given = [{"prompt": PROMPT}], {"guidance_scale": "3", "scheduler": "euler"}
    options = {name: (f"--{name.replace('_', '-')}", value) for name, value in given.items()}
    assert many(lines, *chain(*options.values())) == 0
    monkeypatch.setattr(model_loader, "load_pipeline", lambda *_, **__: pytest.fail("work was started"))
    assert many(lines, *chain(*options.values())) == 0
    assert "0 generated now, 1 before" in capsys.readouterr().out
    for omitted in options:
        assert many(lines, *chain(*(option for name, option in options.items() if name != omitted))) == 2
        assert f"another {omitted} than line 1 asks for" in capsys.readouterr().err


def test_the_launcher_s_processes_each_take_every_nth_line(many, tmp_path, monkeypatch):
    lines = [{"prompt": f"a photo of a {subject}"} for subject in SUBJECTS[:3]]
    for rank in ("1", "0"):
        monkeypatch.setenv("PADDLE_TRAINER_ID", rank)
        monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
        assert many(lines) == 0
        numbers = [path.name[:6] for path in sorted((tmp_path / "outputs").iterdir())]
        assert numbers == {"1": ["000002"], "0": ["000001", "000002", "000003"]}[rank]

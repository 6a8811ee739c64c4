"""The scripts that make and judge the bundled models, as far as they run under Paddle."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import ppdiffusers
import pytest
from safetensors.numpy import load_file

import tiny
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.demo_model.photographs import SUBJECTS, WIDTH, View, draw, held_out_views
from ppdiffusers_tome.tools.generation.model_loader import load_pipeline
from ppdiffusers_tome.tools.generation.model_sources import find_model
from ppdiffusers_tome.tools.training.evaluate import judged, main, subject_of_picture, table
from ppdiffusers_tome.tools.training.export import export_dit
from ppdiffusers_tome.tools.training.stages import finished_stages, note_finished, write_rows


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DiT as the trainings leave it, in diffusers' format, exported."""
    folder = tmp_path_factory.mktemp("trained")
    tiny.dit(num_embeds_ada_norm=1000, out_channels=8).save_pretrained(str(folder / "dit"), to_diffusers=True)
    tiny.vae().save_pretrained(str(folder / "vae"), to_diffusers=True)
    tiny.scheduler().save_pretrained(str(folder / "dit" / "scheduler"))
    export_dit(folder / "dit", folder / "vae", folder / "exported")
    return folder / "exported"


def test_exported_dit_keeps_its_labels_and_weights(exported: Path) -> None:
    source = find_model(str(exported), class_labels=True)
    assert [source.labels.find_class(subject.name) for subject in SUBJECTS] == list(range(len(SUBJECTS)))
    pipe = load_pipeline(source, class_labels=True)
    assert isinstance(pipe, ppdiffusers.DiTPipeline)
    assert pipe.labels == {subject.name: number for number, subject in enumerate(SUBJECTS)}
    kept = load_file(exported / "transformer" / "diffusion_paddle_model.safetensors")
    assert {value.dtype for value in kept.values()} == {np.dtype("float16")}
    weights = tiny.dit(num_embeds_ada_norm=1000, out_channels=8).state_dict()
    for name, value in pipe.transformer.state_dict().items():
        np.testing.assert_allclose(value.numpy(), weights[name].numpy(), atol=2e-3)
        assert value.numpy().dtype == np.float32


def test_exported_files_are_summed_up(exported: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (exported / "SHA256SUMS").read_text().splitlines())
    files = {str(path.relative_to(exported)) for path in exported.rglob("*") if path.is_file()} - {"SHA256SUMS"}
    assert set(sums) == files
    assert all(hashlib.sha256((exported / name).read_bytes()).hexdigest() == sums[name] for name in files)


def test_pictures_are_judged_by_their_own_and_by_another_prompt() -> None:
    """The very view whose edges are asked for follows them all; those of another subject few."""
    view = held_out_views(3, WIDTH)[1]
    right = judged((draw(SUBJECTS[1], view) * 255).round().astype(np.uint8), 1, controlled=True)
    assert (right["nearest"], right["recognised"], right["by another's prompt"]) == ("cat", True, False)
    assert right["edges followed"] == 1 > 2 * right["another subject's"]
    wrong = judged((draw(SUBJECTS[2], View()) * 255).round().astype(np.uint8), 1, controlled=False)
    assert (wrong["recognised"], wrong["by another's prompt"]) == (False, True)
    rows = [{"number": 1, "prompt": "", "ratio": 0.5, **each} for each in (right, right)]
    assert table(rows).splitlines()[-1].startswith("| 0.5 | 2 | 1.000 | 0.000 | 1.000 |")


def test_another_prompt_never_names_the_same_subject() -> None:
    for number in range(200):
        assert subject_of_picture(number) is not subject_of_picture(number, shuffled=True)


def test_pictures_drawn_otherwise_are_not_gone_on_with(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Same prompts and seeds, but more steps, another guidance, or another model under the same name."""
    model, output = tmp_path / "model", tmp_path / "out"
    shutil.copytree(exported, model)

    def run(*more: str) -> list[str]:
        given = ["--output", str(output), "--model", str(model), "--count", "1", "--ratios", "0", "--steps", "1", *more]
        monkeypatch.setattr(sys, "argv", ["evaluate", *given])
        main()
        return capsys.readouterr().out.splitlines()

    first = run()
    drawn = output / "pictures-000-0.png"
    assert first[-1].startswith("| 0.0 | 1 | 0.000 |")
    drawn.unlink()
    assert run() == first
    assert not drawn.exists()  # all was found
    for more in (["--steps", "2"], ["--guidance-scale", "1"]):
        name = more[0].lstrip("-").replace("-", " ")
        with pytest.raises(UserError, match=rf"pictures\.jsonl was measured with {name}="):
            run(*more)
    index = model / "model_index.json"
    index.write_text(index.read_text() + "\n")
    with pytest.raises(UserError, match="was measured with models="):
        run()
    assert not drawn.exists()
    assert run("--overwrite") == first
    assert drawn.exists()


RUN_ALL = """
import sys
from ppdiffusers_tome.tools.training import run_all
works, fails = ("works", ["run_all", "--help"]), ("fails", ["no_such_script"])
run_all.plan = lambda output: ([works], [[fails, works], [works]] if "later" in sys.argv[2] else [[works], [works]])
run_all.main()
"""


@pytest.mark.once
@pytest.mark.parametrize(
    ("output", "code", "parts"), [("all", 0, ["works", "works", "works"]), ("later", 1, ["fails", "works", "works"])]
)
def test_a_part_that_fails_is_told_by_the_exit_code(output: str, code: int, parts: list[str], tmp_path: Path) -> None:
    """Of lines that run side by side the other goes on."""
    command = [sys.executable, "-c", RUN_ALL, "--output", str(tmp_path / output)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr == ("" if code == 0 else f"not finished; see {tmp_path / output / 'run.log'}\n")
    log = (tmp_path / output / "run.log").read_text().splitlines()
    ended = sorted(line.split()[3].rstrip(":") for line in log if "ended with" in line)
    assert ended == parts


def test_what_a_training_notes_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by one that is killed before its file is renamed."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    note_finished(tmp_path, "first", {"steps": 1})
    write_rows(tmp_path / "loss.jsonl", [{"step": 1}])
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        for write in (
            lambda: note_finished(tmp_path, "second", {"steps": 2}),
            lambda: write_rows(tmp_path / "loss.jsonl", []),
        ):
            with pytest.raises(KeyboardInterrupt):
                write()
    assert finished_stages(tmp_path) == {"first": {"steps": 1}}
    assert (tmp_path / "loss.jsonl").read_text() == '{"step": 1}\n'
    note_finished(tmp_path, "second", {"steps": 2})
    assert finished_stages(tmp_path) == {"first": {"steps": 1}, "second": {"steps": 2}}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loss.jsonl", "stages.json"]

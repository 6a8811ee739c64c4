"""Fixtures of the commands, which run the small model at a small size."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny
from ppdiffusers_tome.tools.cli.program import main
from tools.cli.helpers import PROMPT, SMALL, draw_square, heard


@pytest.fixture
def generate(tmp_path: Path) -> Callable[..., list[Path]]:
    """Run ``generate`` on small images; returns the files, in order."""

    def run(*arguments: str, folder: str = "outputs", prompts: tuple[str, ...] = (PROMPT,)) -> list[Path]:
        output = tmp_path / folder
        asked = [part for prompt in prompts for part in ("--prompt", prompt)]
        assert main(["generate", *SMALL, *asked, "--output", str(output), *arguments]) == 0
        return sorted(output.iterdir())

    return run


@pytest.fixture
def get_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., str]:
    """Run the program in ``tmp_path``, expect it to refuse, and return its one line."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(arguments) == 2
        captured = capsys.readouterr()
        (error,) = heard(captured.err)
        assert error.startswith("ppdiffusers-tome: error: ")
        assert captured.out == ""
        return error

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the model of photographs, to be changed."""
    return Path(shutil.copytree(tiny.PHOTOGRAPHS, tmp_path / "photographs"))


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    draw_square().save(path)
    return path

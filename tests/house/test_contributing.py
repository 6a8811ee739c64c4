"""The walks of CONTRIBUTING.md, followed on a copy of the source: what they write, and the tests that they run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from house.rooms import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NEW_FILE = re.compile(r"`([\w/]+\.py)`:\n\n```python\n(.*?)```", re.DOTALL)
DIFF = re.compile(r"```diff\n--- a/(\S+)\n\+\+\+ b/\1\n@@\n(.*?)```", re.DOTALL)
PYTEST = re.compile(r"^pytest (.*)$", re.MULTILINE)


def change(text: str, hunk: str) -> str:
    """A text with a hunk of a difference applied; what it removes or follows must be there once."""
    lines = hunk.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    assert text.count(before) == 1, hunk
    return text.replace(before, after)


@pytest.mark.sweep
@pytest.mark.parametrize(("title", "files", "changed"), [("Your first adapter", 4, 1), ("Your first method", 0, 3)])
def test_walk_does_what_it_says(title: str, files: int, changed: int, tmp_path: Path) -> None:
    walk = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    for folder in ("ppdiffusers_tome", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.npz"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    new, differing = NEW_FILE.findall(walk), DIFF.findall(walk)
    assert (len(new), len(differing)) == (files, changed)
    for name, text in new:
        assert not (tmp_path / name).exists()
        (tmp_path / name).write_text(text)
    for name, hunks in differing:
        text = (tmp_path / name).read_text()
        for hunk in hunks.split("@@\n"):
            text = change(text, hunk)
        (tmp_path / name).write_text(text)

    def run(*command: str) -> str:
        path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))  # the copy comes first
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    run("ruff", "check", *(name for name, *_ in new + differing))
    for name, _ in new:
        if name.startswith("tests/denoisers/"):
            run("pytest", name)
    (arguments,) = PYTEST.findall(walk)
    passed = re.search(r"(\d+) passed", run("pytest", *shlex.split(arguments)))
    assert passed
    assert int(passed[1]) > 10  # the contract, or what all methods have in common, is among them

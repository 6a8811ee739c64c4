"""Only a release is published, and its version is the same everywhere."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from house.pages import ROOT
from ppdiffusers_tome.tools.console.extras import MODULES
from ppdiffusers_tome.version import __version__


def test_the_version_is_the_same_everywhere() -> None:
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1].startswith(__version__)


def test_commands_look_for_the_packages_of_their_extra() -> None:
    listed = re.search(r"^CLI = \[(.*?)^\]", (ROOT / "setup.py").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert listed is not None
    distributions = packages_distributions()
    looked_for = {distributions[module][0].lower().replace("_", "-") for module in MODULES["cli"]}
    assert looked_for == set(re.findall(r'^    "([\w-]+)', listed[1], re.MULTILINE))


@pytest.mark.parametrize(
    ("tag", "heading", "repository", "told"),
    [
        ("v1.2.3", "1.2.3 (2026-12-01)", "https://h/o/n", ""),
        ("v1.2.4", "1.2.3 (2026-12-01)", "https://h/o/n", "the tag is v1.2.4, and ppdiffusers_tome/version.py says"),
        ("v1.2.3", "1.2.3 (2026-12-01)", "", 'REPOSITORY in setup.py must be "https://h/o/n"'),
        ("v1.2.3", "1.2.3 (not released yet)", "https://h/o/n", 'CHANGELOG.md needs the heading "## 1.2.3 (YYYY'),
    ],
)
def test_only_a_release_is_published(tag: str, heading: str, repository: str, told: str, tmp_path: Path) -> None:
    for name, pattern, new in (
        (".ci/releasable", "^$", ""),
        ("ppdiffusers_tome/version.py", '".*"', '"1.2.3"'),
        ("setup.py", '^REPOSITORY = ".*"', f'REPOSITORY = "{repository}"'),
        ("CHANGELOG.md", "^## .*", f"## {heading}"),
    ):
        text = re.sub(pattern, new, (ROOT / name).read_text(encoding="utf-8"), count=1, flags=re.MULTILINE)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = ["bash", str(tmp_path / ".ci" / "releasable"), tag, "https://h/o/n"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == bool(told)
    assert told in done.stderr

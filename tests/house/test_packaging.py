"""Only a release is published, and its version is the same everywhere."""

from __future__ import annotations

import re
from importlib.metadata import packages_distributions

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

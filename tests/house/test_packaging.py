"""What setup.py puts into the package, and what a package index shows of it."""

from __future__ import annotations

import re
import runpy
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import setuptools
from markdown_it import MarkdownIt

from house.rooms import PACKAGE, ROOT
from ppdiffusers_tome.version import __version__

# Of the package's folder, but of use in a checkout alone.
NOT_INSTALLED = {PACKAGE / "tools" / "training" / "losses"}


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    """What setup.py hands to ``setup``, and its function ``for_an_index``."""
    handed: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setuptools, "setup", lambda **given: handed.update(given))
        return {**runpy.run_path(str(ROOT / "setup.py")), **handed}


@pytest.fixture
def for_an_index(settings: dict[str, Any]) -> Callable[[str, str], str]:
    return settings["for_an_index"]


def test_every_file_of_the_package_is_installed(settings: dict[str, Any]) -> None:
    installed = {PACKAGE / "__init__.py"}
    for package in settings["packages"]:
        folder = ROOT / package.replace(".", "/")
        for pattern in ("*.py", *settings["package_data"].get(package, ())):
            installed.update(folder.glob(pattern))
    there = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path for path in there - installed if path.parent not in NOT_INSTALLED} == set()


class Targets(HTMLParser):
    """Where the links and pictures of a page lead."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(MarkdownIt("gfm-like", {"linkify": False}).render(page))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("href", "src", "srcset")]


@pytest.mark.parametrize("repository", ["", "https://example.org/owner/name"])
def test_readme_on_an_index_leads_nowhere_beside_it(repository: str, for_an_index: Callable[[str, str], str]) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    before, after = Targets(page).found, Targets(for_an_index(page, repository)).found
    assert {target for target in after if not target.startswith("https://")} == set()
    if repository:
        assert len(after) == len(before)
        for target in after:
            view, _, path = target.removeprefix(f"{repository}/").partition(f"/v{__version__}/")
            if view in ("blob", "raw"):
                assert (ROOT / path.partition("#")[0]).exists(), target


PAGE = """[docs](pages/a.md#b) ![p](i.png) [![p](i.png)](pages/a.md) [here](#use) [out](https://x.org) [`a[0]`](s.py)
<a href="pages/a.md">a</a> <img width="3" src="i.png" alt="p"> <a href="https://x.org">x</a>
```
[code](stays.md)
```
"""
WITHOUT = """docs   here [out](https://x.org) `a[0]`
<a>a</a>  <a href="https://x.org">x</a>
```
[code](stays.md)
```
"""


def test_links_of_a_page(for_an_index: Callable[[str, str], str]) -> None:
    at, raw = (f"https://h/o/n/{view}/v{__version__}" for view in ("blob", "raw"))
    expected = PAGE.replace("(pages/", f"({at}/pages/").replace("(s.py", f"({at}/s.py").replace("(#", "(https://h/o/n#")
    expected = expected.replace("(i.png", f"({raw}/i.png").replace('"i.png', f'"{raw}/i.png')
    expected = expected.replace('"pages/', f'"{at}/pages/')
    assert for_an_index(PAGE, "https://h/o/n") == expected
    assert for_an_index(PAGE, "") == WITHOUT


def test_readme_is_the_page_of_the_index(settings: dict[str, Any]) -> None:
    # Until there is a public place, links to files of the repository are plain text there.
    first_sentence = (ROOT / "README.md").read_text(encoding="utf-8").split("\n\n")[2]
    assert f"\n\n{first_sentence}\n\n" in settings["long_description"]
    assert settings["version"] == __version__
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    newest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    assert newest.startswith(__version__)


def test_pre_commit_checks_with_the_pinned_versions() -> None:
    files = [ROOT / "requirements.txt", ROOT / "tests" / "requirements.txt"]
    pins = [pin for file in files for pin in file.read_text(encoding="utf-8").split()]
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    for tool in ("ruff", "mypy", "numpy", "filelock", "matplotlib", "packaging", "pillow", "rich"):
        assert next(pin for pin in pins if pin.startswith(f"{tool}==")) in re.split(r"[\s\[\]]+", hooks)


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

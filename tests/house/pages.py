"""Sections of the README and docs, read with markdown-it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README, TRANSLATED_README = ROOT / "README.md", ROOT / "README.zh-CN.md"

_SYNTAX = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Section:
    """A heading with what follows it, up to the next heading.

    Attributes:
        level: 1 to 6; 0 before the first heading.
        anchor: the end of a link to it, on code hosts and on the site.
        code: the text of each fenced block, with its language before it.
        links: the targets of links and images.
    """

    level: int = 0
    anchor: str = ""
    code: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)


def documents() -> list[Path]:
    """List every Markdown file of the repository's root and of docs."""
    return sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def chinese_page(page: Path) -> Path:
    """Return the path of the Chinese page of an English one."""
    return TRANSLATED_README if page == README else DOCS / "zh" / page.relative_to(DOCS / "en")


@cache
def sections(page: Path) -> list[Section]:
    """Read the sections of a page."""
    found = [Section()]
    anchors: Counter[str] = Counter()
    tokens = _SYNTAX.parse(page.read_text(encoding="utf-8"))
    for previous, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "fence":
            found[-1].code.append(f"{token.info}\n{token.content}")
        elif token.type == "inline":
            if previous is not None and previous.type == "heading_open":
                title = "".join(part.content for part in token.children or () if part.type in ("text", "code_inline"))
                anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
                anchors[anchor] += 1
                unique = anchor if anchors[anchor] == 1 else f"{anchor}-{anchors[anchor] - 1}"
                found.append(Section(int(previous.tag[1]), unique))
            for part in token.children or ():
                found[-1].links.extend(str(part.attrs[name]) for name in ("href", "src") if name in part.attrs)
    return found


def resolve_link(page: Path, link: str) -> tuple[Path, str] | None:
    """Return the file and anchor of a link; None outside of the repository."""
    if re.match(r"[a-z]+:", link):
        return None
    target, _, anchor = unquote(link).partition("#")  # markdown-it encodes Chinese
    return (page.parent / target).resolve() if target else page, anchor

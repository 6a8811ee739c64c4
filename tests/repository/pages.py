"""Sections of the README and docs, read with markdown-it."""

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
DOCS, README = ROOT / "docs", ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
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


def sections(page: Path) -> list[Section]:
    return find_sections(page.read_text(encoding="utf-8"))


@cache
def find_sections(text: str) -> list[Section]:
    found, anchors, level = [Section()], Counter[str](), 0
    for token in _SYNTAX.parse(text):
        if token.type == "heading_open":
            level = int(token.tag[1])
        elif token.type == "fence":
            found[-1].code.append(f"{token.info}\n{token.content}")
        elif token.type == "inline":
            if level:
                title = "".join(part.content for part in token.children or () if part.type in ("text", "code_inline"))
                anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
                found.append(Section(level, f"{anchor}-{anchors[anchor]}" if anchors[anchor] else anchor))
                anchors[anchor] += 1
                level = 0
            for part in token.children or ():
                found[-1].links.extend(str(part.attrs[name]) for name in ("href", "src") if name in part.attrs)
    return found


def list_targets(page: Path) -> list[tuple[Path, str]]:
    """List the files and anchors that a page links to, inside of the repository."""
    links = [link for section in sections(page) for link in section.links if not re.match(r"[a-z]+:", link)]
    split = [unquote(link).partition("#") for link in links]  # markdown-it encodes Chinese
    return [((page.parent / target).resolve() if target else page, anchor) for target, _, anchor in split]

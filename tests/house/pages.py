"""The pages of README and docs, taken apart by markdown-it: headings, code, tables, links, figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README, TRANSLATED_README = ROOT / "README.md", ROOT / "README.zh-CN.md"

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SENTENCE_END = re.compile(r"[.:;!?。：；！？][)*_`\"”）]*$")  # noqa: RUF001
_SYNTAX = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Section:
    """From one heading to the next.

    Attributes:
        title: as shown.
        level: 1 to 6; 0 before the first heading.
        anchor: what a link to it ends in, on code hosts and on the site.
        code: the text of each fenced block, with its language before it.
        rows: of tables, the numbers and code of each, sorted, as words stand in another order in another language.
        spans: code and numbers in the text outside of tables.
        links: the targets of links and pictures.
    """

    title: str
    level: int
    anchor: str
    code: list[str]
    rows: list[list[str]]
    spans: set[str]
    links: list[str]


def documents() -> list[Path]:
    """Every Markdown file of the repository's root and of docs."""
    return sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def translated(page: Path) -> Path:
    """Where the Chinese page of an English one is, whether there is one or not."""
    return TRANSLATED_README if page == README else DOCS / "zh" / page.relative_to(DOCS / "en")


@cache
def sections(page: Path) -> list[Section]:
    """A page, section by section."""
    found = [Section("", 0, "", [], [], set(), [])]
    anchors: Counter[str] = Counter()
    inside: list[Token] = []
    for token in _SYNTAX.parse(page.read_text(encoding="utf-8")):
        if token.nesting == 1:
            inside.append(token)
        elif token.nesting == -1:
            inside.pop()
        if token.type == "tr_open":
            found[-1].rows.append([])
        elif token.type == "fence":
            found[-1].code.append(f"{token.info}\n{token.content}")
        elif token.type == "inline":
            if inside[-1].type == "heading_open":
                title = "".join(part.content for part in _parts(token))
                anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
                anchors[anchor] += 1
                unique = anchor if anchors[anchor] == 1 else f"{anchor}-{anchors[anchor] - 1}"
                found.append(Section(title, int(inside[-1].tag[1]), unique, [], [], set(), []))
            shown = list(_figures(token))
            if any(outer.type == "tr_open" for outer in inside):
                found[-1].rows[-1][:] = sorted([*found[-1].rows[-1], *shown])
            else:
                found[-1].spans.update(shown)
            found[-1].links.extend(
                str(part.attrs[name]) for part in _parts(token) for name in ("href", "src") if name in part.attrs
            )
    return found


def resolved(page: Path, link: str) -> tuple[Path, str] | None:
    """The file and the anchor that a link leads to; None for one that leads out of the repository."""
    if re.match(r"[a-z]+:", link):
        return None
    target, _, anchor = link.partition("#")
    return (page.parent / target).resolve() if target else page, anchor


def wrapped_lines(page: Path) -> list[str]:
    """Lines of text that end within a sentence."""
    texts = [token for token in _SYNTAX.parse(page.read_text(encoding="utf-8")) if token.type == "inline"]
    return [line for text in texts for line in text.content.splitlines()[:-1] if not _SENTENCE_END.search(line)]


def _parts(token: Token) -> Iterator[Token]:
    for part in token.children or ():
        yield part
        yield from _parts(part)


def _figures(token: Token) -> Iterator[str]:
    for part in _parts(token):
        if part.type == "code_inline":
            yield part.content
        elif part.type == "text":
            yield from _NUMBER.findall(part.content)

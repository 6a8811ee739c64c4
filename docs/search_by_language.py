"""A hook of MkDocs: each language of the site searches its own pages alone.

The search looks for ``search/search_index.json`` below the ``base`` that a page names. So pages of another language get
the folder of their language as base, and an index there.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority

LANGUAGES = ("zh",)  # but the default one, whose pages are at the top


@event_priority(-100)  # after the plugin that builds the other languages and writes the index
def on_post_build(config: Any, **kwargs: Any) -> None:
    site = Path(config["site_dir"])
    file = site / "search" / "search_index.json"
    index = json.loads(file.read_text(encoding="utf-8"))
    pages = index["docs"]
    for language in LANGUAGES:
        prefix = f"{language}/"
        own = [page for page in pages if page["location"].startswith(prefix)]
        pages = [page for page in pages if not page["location"].startswith(prefix)]
        if own:
            own = [{**page, "location": page["location"].removeprefix(prefix)} for page in own]
            _write(site / language / "search" / "search_index.json", {**index, "docs": own})
            for page in (site / language).rglob("*.html"):
                _set_base(page, len(page.relative_to(site / language).parts) - 1)
    _write(file, {**index, "docs": pages})


def _write(file: Path, index: dict[str, Any]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def _set_base(page: Path, depth: int) -> None:
    text = page.read_text(encoding="utf-8")
    base = "/".join([".."] * depth) or "."
    changed, count = re.subn(r'(<script id="__config"[^>]*>\{[^<]*?"base":\s*)"[^"]*"', rf'\g<1>"{base}"', text)
    if count != 1:
        raise ValueError(f"{page} has no base to set")
    page.write_text(changed, encoding="utf-8")

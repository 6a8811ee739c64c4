"""What the page says, a file a language."""

from __future__ import annotations

import re

from ppdiffusers_tome.tools.play.i18n.chinese import CHINESE
from ppdiffusers_tome.tools.play.i18n.english import ENGLISH

LANGUAGES = {words.code: words for words in (ENGLISH, CHINESE)}


def language_of(accepted: str) -> str:
    """The language that a browser likes best of those that there are, by its ``Accept-Language``; else English.

    Example:
        >>> language_of("fr, zh-CN;q=0.8, en;q=0.5")
        'zh'
    """
    liked: list[tuple[float, str]] = []
    for found in re.finditer(r"([A-Za-z]{1,8})(?:-[\w-]{1,32})?\s*(?:;\s*q=([\d.]{1,5}))?\s*(?:,|$)", accepted[:500]):
        try:
            liked.append((-float(found[2] or 1), found[1].lower()))
        except ValueError:  # 0.0.1
            continue
    return next((code for _, code in sorted(liked, key=lambda each: each[0]) if code in LANGUAGES), ENGLISH.code)

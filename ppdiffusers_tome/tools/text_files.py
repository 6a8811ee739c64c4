"""Text files of users, from any system. Needs no Paddle."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ppdiffusers_tome.errors import ToMeValueError


def read_text(path: str | Path) -> str:
    r"""Read a text file in UTF-8, UTF-16 or UTF-32.

    Returns:
        The text without its byte order mark; line ends (CR, LF or both) are ``\n``.

    Raises:
        ToMeValueError: the file cannot be read, or it is not such text.
    """
    try:
        content = Path(path).read_bytes()
        encoding = json.detect_encoding(content)
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        if content.startswith(b"PK\x03\x04"):
            raise ToMeValueError(f"{path}: it is an Excel workbook or an archive; save the table as CSV") from error
        raise ToMeValueError(
            f"{path}: it is not text in {encoding.upper()}; save it as UTF-8, or convert it, such as Chinese text of "
            "Windows (GBK) with iconv -f GB18030 -t UTF-8 OLD > NEW"
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ToMeValueError(f"{path} cannot be read ({reason})") from error
    if "\0" in text:
        raise ToMeValueError(f"{path}: it has a null character, which no text has; save it as UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def doubt_encoding(text: str) -> str | None:
    """Explain why a text read as UTF-8 may be Chinese in GB18030.

    Every common Chinese character of GB18030, and of GBK and GB2312 inside it, has two bytes, which now and then are
    valid in UTF-8, too: a letter of another script. In UTF-8, letters with accents stand beside plain ones.
    """
    if not any("\x80" <= letter < "\u0800" for letter in text) or max(text) >= "\u0800":
        return None
    try:
        chinese = text.encode().decode("gb2312")
    except UnicodeDecodeError:
        return None
    if re.search(r"[A-Za-z][\u4e00-\u9fff]|[\u4e00-\u9fff][A-Za-z]", chinese):
        return None
    found = re.search("[\u4e00-\u9fff]+", chinese)
    if found is None:
        return None
    return (
        f"may be GB18030 (GBK) and not UTF-8: its first words are {found[0]!r} then, and "
        f"{found[0].encode('gb2312').decode()!r} as it is read now; if so, convert it with iconv -f GB18030 -t UTF-8 "
        "OLD > NEW"
    )

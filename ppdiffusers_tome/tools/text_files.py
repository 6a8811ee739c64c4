"""Text files of users, from any system. Needs no Paddle."""

from __future__ import annotations

import json
import re
import unicodedata
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
        if encoding == "utf-8" and _is_gbk_by_chance(text):
            raise UnicodeDecodeError(encoding, content, 0, len(content), "it is GBK")
    except UnicodeDecodeError as error:
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


def _is_gbk_by_chance(text: str) -> bool:
    """Return whether short Chinese text in GBK was valid UTF-8, too.

    Its words then mix letters of several scripts that have two bytes in UTF-8.
    """
    for word in re.findall("[\u00c0-\u07ff]+", text):
        letters = [letter for letter in word if unicodedata.category(letter) in ("Ll", "Lu", "Lo")]
        if len({unicodedata.name(letter, "").split(" ")[0] for letter in letters}) > 1:
            return True
    return False

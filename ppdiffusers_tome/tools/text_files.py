"""Text files of users, from any system. Needs no Paddle."""

from __future__ import annotations

import json
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

"""Text that is not UTF-8: what it may be instead, and how to convert it. Knows no Paddle."""

from __future__ import annotations

UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # what files in UTF-16 begin with
_SHOWN = 40  # characters
# Of text that is in GBK nearly all is of its first and oldest part; bytes that fit by chance are of any.
_COMMON = 0.8


def how_to_convert(content: bytes) -> str:
    """What to do with bytes that are not UTF-8: half a sentence."""
    if content.startswith(UTF_16):
        return f"it is UTF-16; {_converted_from('UTF-16')}"
    if b"\0" in content[:4]:
        little = content[:1] != b"\0"
        return f"it may be UTF-16; {_converted_from('UTF-16LE' if little else 'UTF-16BE')}"
    text = _read_as_gbk(content)
    if text is None:
        return "save the file as UTF-8"
    text = " ".join(text.split())
    begins = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"it may be GBK, as which it says {begins!r}; {_converted_from('GB18030')}"


def _converted_from(encoding: str) -> str:
    return f"save the file as UTF-8, such as with: iconv -f {encoding} -t UTF-8 OLD > NEW"


def _read_as_gbk(content: bytes) -> str | None:
    """The text in GBK (or its larger kin GB18030); None where that makes no sense."""
    try:
        text = content.decode("gb18030")
    except UnicodeDecodeError:
        return None
    beyond = [letter for letter in text if not letter.isascii()]
    common = sum(_is_common(letter) for letter in beyond)
    return text if beyond and common >= _COMMON * len(beyond) else None


def _is_common(letter: str) -> bool:
    try:
        letter.encode("gb2312")
    except UnicodeEncodeError:
        return False
    return True

"""Draw Noto Color Emoji's pictures by class into one file, which needs only numpy to be read.

    sudo apt-get install fonts-noto-color-emoji unicode-data
    python examples/train_demo_models/emoji.py --output runs/emoji.npz

It needs Pillow with Raqm, as PyPI has it, because many emoji are ligatures of several characters. The font is under the
SIL Open Font License, the list of names and subgroups under Unicode's licence.
"""

from __future__ import annotations

import argparse
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SIZE = 128  # side of a picture in pixels; the font's own are 136x128, with 4 empty columns on both sides
FONT = Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
NAMES = Path("/usr/share/unicode/emoji/emoji-test.txt")
HELD_OUT = 10  # one name in so many is never trained on
# A class and its subgroups in Unicode's list; subgroups without a common look are left out.
CLASSES = {
    "face": (
        "face-smiling", "face-affection", "face-tongue", "face-hand", "face-neutral-skeptical", "face-sleepy",
        "face-unwell", "face-hat", "face-glasses", "face-concerned", "face-negative",
    ),
    "cat face": ("cat-face",),
    "heart": ("heart",),
    "hand": (
        "hand-fingers-open", "hand-fingers-partial", "hand-single-finger", "hand-fingers-closed", "hand-prop", "hands",
    ),
    "person": ("person",),
    "gesture": ("person-gesture",),
    "worker": ("person-role",),
    "fantasy": ("person-fantasy",),
    "walker": ("person-activity",),
    "athlete": ("person-sport",),
    "mammal": ("animal-mammal", "monkey-face"),
    "bird": ("animal-bird",),
    "flower": ("plant-flower",),
    "fruit": ("food-fruit",),
    "building": ("place-building", "place-religious"),
    "vehicle": ("transport-ground",),
    "clock": ("time",),
    "book": ("book-paper",),
    "zodiac": ("zodiac", "religion"),
    "arrow": ("arrow",),
    "button": ("alphanum", "av-symbol"),
    "digit": ("keycap",),
    "shape": ("geometric",),
    "flag": ("country-flag", "subdivision-flag"),
}
_LINE = re.compile(r"([0-9A-F ]+?)\s*; fully-qualified\s*# \S+ E[\d.]+ (.+)")
_TONE = re.compile("[\U0001f3fb-\U0001f3ff]")


@dataclass(frozen=True)
class Emoji:
    """An emoji: its characters, its name in English and the number of its class."""

    text: str
    name: str
    number: int

    @property
    def is_held_out(self) -> bool:
        """One name in ten, with all of its tones of skin: else the same drawing would be on both sides."""
        drawing = self.name.split(":")[0] if _TONE.search(self.text) else self.name
        return zlib.crc32(drawing.encode()) % HELD_OUT == 0


def list_emoji(names: Path) -> list[Emoji]:
    """List the emoji of ``CLASSES`` with at most one tone of skin, from Unicode's ``emoji-test.txt``."""
    number_by_subgroup = {group: n for n, groups in enumerate(CLASSES.values()) for group in groups}
    emoji, subgroup = [], ""
    for line in names.read_text(encoding="utf-8").splitlines():
        if line.startswith("# subgroup: "):
            subgroup = line.removeprefix("# subgroup: ")
        elif (match := _LINE.match(line)) and subgroup in number_by_subgroup:
            text = "".join(chr(int(code, 16)) for code in match[1].split())
            if len(_TONE.findall(text)) <= 1:
                emoji.append(Emoji(text, match[2], number_by_subgroup[subgroup]))
    return emoji


def draw(text: str, font: object) -> np.ndarray | None:
    """Draw an emoji on white: uint8 ``[SIZE, SIZE, 3]``, or None where the font has no single picture of it."""
    from PIL import Image, ImageDraw

    if font.getlength(text) != font.getlength("\U0001f600"):
        return None
    image = Image.new("RGB", (SIZE + 8, SIZE), "white")
    ImageDraw.Draw(image).text((0, 0), text, font=font, embedded_color=True, anchor="lt")
    return np.asarray(image)[:, 4 : SIZE + 4]


def main() -> None:
    from PIL import ImageFont

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--font", type=Path, default=FONT)
    parser.add_argument("--names", type=Path, default=NAMES)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    font = ImageFont.truetype(str(args.font), 109, layout_engine=ImageFont.Layout.RAQM)  # the size of its bitmaps
    drawn = [(emoji, image) for emoji in list_emoji(args.names) if (image := draw(emoji.text, font)) is not None]
    emoji = [one for one, _ in drawn]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    images, labels = np.stack([image for _, image in drawn]), np.array([one.number for one in emoji], np.int16)
    is_held_out, classes = np.array([one.is_held_out for one in emoji]), np.array(list(CLASSES))
    np.savez_compressed(
        args.output, images=images, names=np.array([one.name for one in emoji]), labels=labels, classes=classes,
        is_held_out=is_held_out,
    )  # fmt: skip
    megabytes = args.output.stat().st_size / 1e6
    print(f"{len(emoji)} emoji of {len(CLASSES)} classes, {is_held_out.sum()} held out; {megabytes:.1f} MB")


if __name__ == "__main__":
    main()

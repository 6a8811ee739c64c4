"""Draw emoji of five free sets by class into one file for numpy.

    npm pack @iconify-json/noto @iconify-json/noto-v1 @iconify-json/twemoji @iconify-json/fluent-emoji-flat \
        @iconify-json/emojione
    sudo apt-get install unicode-data; pip install resvg_py
    python examples/train_demo_models/emoji.py --packages . --output runs/emoji.npz

The sets are Noto (Apache 2.0, today's and the first), Fluent (MIT), Twemoji and EmojiOne (CC BY 4.0); the list of names
and subgroups is under Unicode's licence. Each name is drawn by several hands, so a class is more than a list of images.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SETS = ("noto", "noto-v1", "twemoji", "fluent-emoji-flat", "emojione")
NAMES = Path("/usr/share/unicode/emoji/emoji-test.txt")
HELD_OUT = 10  # one name in so many is never trained on, in any set
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
    "athlete": ("person-activity", "person-sport"),
    "mammal": ("animal-mammal", "monkey-face"),
    "bird": ("animal-bird",),
    "fish": ("animal-marine",),
    "bug": ("animal-bug",),
    "flower": ("plant-flower",),
    "plant": ("plant-other",),
    "fruit": ("food-fruit",),
    "vegetable": ("food-vegetable",),
    "dessert": ("food-sweet",),
    "drink": ("drink",),
    "building": ("place-building", "place-religious"),
    "car": ("transport-ground",),
    "ship": ("transport-water",),
    "clock": ("time",),
    "clothes": ("clothing",),
    "music": ("musical-instrument",),
    "book": ("book-paper",),
    "mail": ("mail",),
    "zodiac": ("zodiac", "religion"),
    "arrow": ("arrow",),
    "button": ("alphanum", "av-symbol"),
    "digit": ("keycap",),
    "shape": ("geometric",),
    "flag": ("country-flag",),
}
_LINE = re.compile(r"([0-9A-F ]+?)\s*; fully-qualified\s*# \S+ E[\d.]+ (.+)")
_TONE, _VARIANT = re.compile("1f3f[b-f]"), re.compile("-fe0f")


@dataclass(frozen=True)
class Emoji:
    """An emoji: its characters' numbers, its English name and its class."""

    codes: str
    name: str
    number: int

    @property
    def drawing(self) -> str:
        """The name without a tone of skin."""
        # Else the same drawing would be on both sides.
        return self.name.split(":")[0] if _TONE.search(self.codes) else self.name

    @property
    def keys(self) -> tuple[str, ...]:
        """Its names in the sets: numbers of its characters, or forms of its name."""
        slug = re.sub("[^a-z0-9]+", "-", self.name.lower()).strip("-")
        return self.codes, slug, slug.replace("flag-", "flag-for-"), slug.replace("flag-", "flag-for-flag-")

    @property
    def is_held_out(self) -> bool:
        return zlib.crc32(self.drawing.encode()) % HELD_OUT == 0


def list_emoji(names: Path) -> list[Emoji]:
    """List the emoji of ``CLASSES`` from Unicode's ``emoji-test.txt``.

    Each is there without a tone of skin, and with one of five.
    """
    number_by_subgroup = {group: n for n, groups in enumerate(CLASSES.values()) for group in groups}
    emoji, subgroup = [], ""
    for line in names.read_text(encoding="utf-8").splitlines():
        if line.startswith("# subgroup: "):
            subgroup = line.removeprefix("# subgroup: ")
        elif (match := _LINE.match(line)) and subgroup in number_by_subgroup:
            one = Emoji(_VARIANT.sub("", match[1].lower().replace(" ", "-")), match[2], number_by_subgroup[subgroup])
            tones = _TONE.findall(one.codes)
            if not tones or tones == [f"1f3f{'bcdef'[zlib.crc32(one.drawing.encode()) % 5]}"]:
                emoji.append(one)
    return emoji


def read_set(package: Path, size: int) -> dict[str, str]:
    """Return a package's SVG images by name and by their characters' numbers."""
    with tarfile.open(package) as archive:
        icons, names = (_read_json(archive, name) for name in ("icons.json", "chars.json"))
    square = icons.get("width", 16)
    images = {}
    for name, icon in icons["icons"].items():
        box = f"0 0 {icon.get('width', square)} {icon.get('height', square)}"
        images[name] = (
            f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'width="{size}" height="{size}" viewBox="{box}">{icon["body"]}</svg>'
        )
    return images | {_VARIANT.sub("", codes): images[name] for codes, name in names.items() if name in images}


def _read_json(archive: tarfile.TarFile, name: str) -> dict[str, Any]:
    file = archive.extractfile(f"package/{name}")
    assert file is not None
    return json.load(file)


def draw(svg: str, size: int) -> np.ndarray:
    """Draw an image on white: uint8 ``[size, size, 3]``."""
    import resvg_py
    from PIL import Image

    drawn = resvg_py.svg_to_bytes(svg_string=svg, background="white", width=size, height=size)
    return np.asarray(Image.open(io.BytesIO(bytes(drawn))).convert("RGB").resize((size, size)))


def draw_all(packages: Path, names: Path, size: int) -> Iterator[tuple[Emoji, str, np.ndarray]]:
    """Draw every emoji of every set that has it, with the set's name."""
    emoji = list_emoji(names)
    for name in SETS:
        (package,) = packages.glob(f"iconify-json-{name}-[0-9]*.tgz")
        images = read_set(package, size)
        for one in emoji:
            key = next((key for key in one.keys if key in images), None)
            if key is not None:
                yield one, name, draw(images[key], size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--packages", type=Path, required=True, help="folder of the sets' packages")
    parser.add_argument("--names", type=Path, default=NAMES)
    parser.add_argument("--size", type=int, default=128, help="of an image, in pixels (128)")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    emoji, sets, images = zip(*draw_all(args.packages, args.names, args.size), strict=True)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    labels, is_held_out = (np.array([getattr(one, name) for one in emoji]) for name in ("number", "is_held_out"))
    np.savez_compressed(
        args.output, images=np.stack(images), names=np.array([one.name for one in emoji]), sets=np.array(sets),
        labels=labels.astype(np.int16), classes=np.array(list(CLASSES)), is_held_out=is_held_out,
    )  # fmt: skip
    megabytes = args.output.stat().st_size / 1e6
    print(f"{len(emoji)} images of {len(CLASSES)} classes, {is_held_out.sum()} held out; {megabytes:.1f} MB")


if __name__ == "__main__":
    main()

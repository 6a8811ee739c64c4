"""Refuse a wheel that holds what no user needs, or another one than the wheel of the same source.

    python .ci/wheel.py FROM_THE_SDIST FROM_THE_TREE
"""

import sys
from zipfile import ZipFile

LARGEST = 1_500_000  # bytes: code and what it reads, no weights


def contents(path: str) -> dict[str, int]:
    """The checksum of every file by its name."""
    with ZipFile(path) as wheel:
        # Dates and the like differ; what is recorded of the others does not.
        return {info.filename: info.CRC for info in wheel.infolist() if not info.filename.endswith("/RECORD")}


from_sdist, from_tree = map(contents, sys.argv[1:])
differing = sorted(name for name, _ in from_sdist.items() ^ from_tree.items())
strange = [
    name for name in from_sdist
    if not name.startswith(("ppdiffusers_tome/", "ppdiffusers_tome-"))
    or any(part.startswith(".") or part in ("tests", "outputs", "__pycache__") for part in name.split("/"))
]  # fmt: skip
with open(sys.argv[1], "rb") as file:
    size = file.seek(0, 2)
if differing:
    sys.exit(f"the wheel of the sdist and that of the tree differ in {', '.join(differing)}")
if strange:
    sys.exit(f"the wheel holds what no user needs: {', '.join(strange)}")
if size > LARGEST:
    sys.exit(f"the wheel has {size} bytes; at most {LARGEST} are right for code alone")
print(f"{len(from_sdist)} files, {size / 10**6:.1f} MB")

"""The picture of the page in the documentation, taken by a real browser of the page as it begins.

    python tests/tools/play/picture.py        # draws docs/images/play.png anew; needs gradio, playwright and a Chromium

With a folder as its argument it writes all looks of the page there instead: both languages, light and dark, as wide as
a desktop and as a phone, before a drawing and after it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PICTURE = ROOT / "docs" / "images" / "play.png"
WAIT = 600_000  # milliseconds
DESKTOP, PHONE = (1180, 900), (390, 844)


def take(browser: Any, address: str, path: Path, *, size: tuple[int, int], locale: str, scheme: str, own: bool) -> None:
    """Draw on the page and write how it looks; with ``own`` settings of one's own, whose map it shows."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, locale=locale, color_scheme=scheme
    )
    tab = context.new_page()
    tab.goto(address, timeout=WAIT)
    tab.wait_for_selector("#tome-draw", timeout=WAIT)
    if path != PICTURE:
        tab.wait_for_timeout(1000)
        tab.screenshot(path=path.with_stem(f"{path.stem}-first"), full_page=True)
    if own:
        tab.locator("#tome-preset input").last.check()
        tab.wait_for_timeout(1000)
    tab.click("#tome-draw")
    tab.wait_for_selector(".tome-figures", timeout=WAIT)
    tab.wait_for_selector("#tome-cancel:disabled", timeout=WAIT)
    tab.wait_for_timeout(1000)
    tab.screenshot(path=path, full_page=True)
    context.close()


def main() -> None:
    from playwright.sync_api import sync_playwright

    program = [sys.executable, "-m", "ppdiffusers_tome", "play", "--port", "0"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=ROOT) as page, sync_playwright() as driver:
        try:
            assert page.stdout is not None
            address = page.stdout.readline().split()[0]
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            if len(sys.argv) == 1:
                take(browser, address, PICTURE, size=DESKTOP, locale="en-US", scheme="light", own=False)
                return
            for size, locale, scheme in product((DESKTOP, PHONE), ("en-US", "zh-CN"), ("light", "dark")):
                path = Path(sys.argv[1]) / f"{locale}-{size[0]}-{scheme}.png"
                take(browser, address, path, size=size, locale=locale, scheme=scheme, own=scheme == "dark")
        finally:
            page.terminate()


if __name__ == "__main__":
    main()

"""Write ``docs/images/play.png`` by a real browser.

With a folder as argument it writes the page in all languages, colors and sizes there.

    python tests/tools/play/picture.py        # needs gradio, playwright and a Chromium
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
WAIT = 600_000  # milliseconds


def take(browser: Any, address: str, path: Path, locale: str, scheme: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, locale=locale, color_scheme=scheme)
    tab = context.new_page()
    tab.goto(address, timeout=WAIT)
    tab.wait_for_selector("#tome-result p", timeout=WAIT)
    if scheme == "dark":
        tab.screenshot(path=path.with_stem(f"{path.stem}-first"), full_page=True)
        tab.locator("#tome-preset input").last.check()  # custom settings, whose map is shown
    tab.click("#tome-generate")
    tab.wait_for_selector(".tome-pair", timeout=WAIT)
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
            looks = [("en-US", "light", 1180)]
            if len(sys.argv) > 1:
                looks += [("zh-CN", "light", 390), ("en-US", "dark", 390), ("zh-CN", "dark", 1180)]
            for look in looks:
                path = Path(sys.argv[1]) / f"{look[0]}-{look[1]}-{look[2]}.png" if len(sys.argv) > 1 else None
                take(browser, address, path or ROOT / "docs" / "images" / "play.png", *look)
        finally:
            page.terminate()


if __name__ == "__main__":
    main()

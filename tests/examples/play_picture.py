"""Write ``docs/images/play.png`` by a real browser.

python tests/examples/play_picture.py     # needs playwright, a Chromium and a quiet machine
"""

import io
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
WAIT = 1_800_000  # milliseconds


def main() -> None:
    from playwright.sync_api import sync_playwright

    program = [sys.executable, "examples/play", "--compile", "--port", "0"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=ROOT) as page, sync_playwright() as driver:
        try:
            assert page.stdout is not None
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            tab = browser.new_page(viewport={"width": 1000, "height": 800})
            tab.goto(page.stdout.readline().split()[0], timeout=WAIT)
            tab.click("#tome-generate", timeout=WAIT)
            tab.wait_for_selector(".tome-pair input", timeout=WAIT)
            tab.wait_for_timeout(1000)
            picture = Image.open(io.BytesIO(tab.screenshot(full_page=True))).convert("RGB")
            picture.quantize(256).save(ROOT / "docs" / "images" / "play.png", optimize=True)
        finally:
            page.terminate()


if __name__ == "__main__":
    main()

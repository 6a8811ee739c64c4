"""The page in a real browser, as wide as a desktop and as a phone."""

from __future__ import annotations

import re
import shutil

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here; on Debian: apt-get install chromium"),
]
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
WAIT = 120_000  # milliseconds


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_both_images_are_compared_under_a_slider(address: str, size: dict[str, int]) -> None:
    driver, errors = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright"), []
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_context(viewport=size, has_touch=size == PHONE).new_page()
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(f"http://{address}/")
        tab.wait_for_selector("#tome-result p", timeout=WAIT)
        tab.locator("#tome-preset input").nth(-2).check()  # by ratio
        tab.wait_for_selector("#tome-own", timeout=WAIT)
        tab.locator("#tome-preset input").first.check()  # a preset, where the page begins
        tab.wait_for_selector("#tome-own", state="hidden", timeout=WAIT)
        generate = tab.locator("#tome-generate").bounding_box()
        tab.click("#tome-generate")
        progress = tab.wait_for_selector("#tome-progress .progress-text", timeout=WAIT).bounding_box()
        for box in (generate, progress):
            assert box["y"] + box["height"] < size["height"], "it is seen without scrolling"
        tab.wait_for_selector(".tome-first img", timeout=WAIT)
        tab.wait_for_selector(".tome-pair img", timeout=WAIT)
        slider = tab.locator(".tome-pair input")
        assert slider.get_attribute("aria-label")
        slider.focus()
        for _ in range(4):
            slider.press("ArrowRight")
        assert tab.locator(".tome-pair").evaluate("pair => pair.style.getPropertyValue('--at')") == "52%"
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"
        browser.close()
    assert errors == []


def test_cancel_and_generate_in_turns_end_in_images(address: str) -> None:
    driver = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab, failed = browser.new_page(), []
        tab.on("response", lambda answer: answer.status < 400 or failed.append(answer.url))
        tab.goto(f"http://{address}/")
        tab.wait_for_selector("#tome-result p", timeout=WAIT)
        for turn in range(15):
            tab.click("#tome-generate")
            tab.wait_for_timeout((0, 50, 200, 600, 1500)[turn % 5])
            tab.click("#tome-cancel")
            tab.wait_for_timeout((0, 100, 400)[turn % 3])
            assert not re.search("error|not found", tab.inner_text("body"), re.IGNORECASE), turn
        tab.click("#tome-generate")
        tab.wait_for_selector(".tome-pair img", timeout=WAIT)
        browser.close()
    assert failed == []

"""The page in a real browser, as wide as a desktop and as a phone."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here; on Debian: apt-get install chromium"),
]
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
WAIT = 120_000  # milliseconds


@pytest.fixture
def open_page(address: str) -> Iterator[Any]:
    """Open the page, which must have no error and ask for nothing from elsewhere."""
    driver, faults = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright"), []
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])

        def open_page(**options: Any) -> Any:
            tab = browser.new_context(**options).new_page()
            tab.on("pageerror", lambda error: faults.append(str(error)))
            tab.on("console", lambda message: message.type == "error" and faults.append(message.text))
            own = (f"http://{address}/", "data:")
            tab.on("request", lambda request: request.url.startswith(own) or faults.append(request.url))
            tab.on("response", lambda answer: answer.status < 400 or faults.append(answer.url))
            tab.goto(f"http://{address}/")
            return tab

        yield open_page
        browser.close()
    assert faults == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_both_images_are_compared_under_a_slider(open_page: Any, size: dict[str, int]) -> None:
    tab = open_page(viewport=size, has_touch=size == PHONE)
    tab.locator("#tome-preset input").nth(-2).check()  # by ratio
    tab.wait_for_selector("#tome-own", timeout=WAIT)
    tab.locator("#tome-preset input").last.check()  # the cache alone
    assert tab.locator("[name=cache]").input_value() == "0.2"
    assert tab.inner_text("#tome-cache output") == "0.2"
    tab.locator("#tome-preset input").first.check()  # a preset, where the page begins
    tab.wait_for_selector("#tome-own", state="hidden", timeout=WAIT)
    generate = tab.locator("#tome-generate").bounding_box()
    tab.click("#tome-generate")
    progress = tab.wait_for_selector("#tome-progress progress", timeout=WAIT).bounding_box()
    for box in (generate, progress):
        assert box["y"] + box["height"] < size["height"], "it is seen without scrolling"
    tab.wait_for_selector(".tome-pair:not(:has(input)) img", timeout=WAIT)
    tab.wait_for_selector(".tome-pair input", timeout=WAIT)
    slider = tab.locator(".tome-pair input")
    assert slider.get_attribute("aria-label")
    slider.focus()
    for _ in range(4):
        slider.press("ArrowRight")
    assert tab.locator(".tome-pair").evaluate("pair => pair.style.getPropertyValue('--at')") == "52%"
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"


def test_cancel_and_generate_in_turns_end_in_images(open_page: Any) -> None:
    tab = open_page()
    for turn in range(15):
        tab.click("#tome-generate")
        tab.wait_for_timeout((0, 50, 200, 600, 1500)[turn % 5])
        tab.click("#tome-cancel")
        tab.wait_for_timeout((0, 100, 400)[turn % 3])
        assert not re.search("error|not found|does not answer", tab.inner_text("body"), re.IGNORECASE), turn
    tab.wait_for_selector("#tome-progress", state="hidden", timeout=WAIT)
    assert tab.inner_text("#tome-notice") == "Cancelled."
    tab.click("#tome-generate")
    tab.wait_for_selector(".tome-pair input", timeout=WAIT)


def test_a_photo_of_the_browser_guides_until_it_is_dropped(open_page: Any, photo: Path) -> None:
    tab = open_page()
    tab.click("#tome-guide summary")
    tab.set_input_files("[name=photo]", photo)
    assert tab.inner_text("#tome-guide output") == "photo.png"
    tab.click("#tome-generate")
    tab.wait_for_selector(".tome-pair input", timeout=WAIT)
    assert tab.locator("#tome-result img").count() == 3, "with its edges"
    tab.click("#tome-drop")
    tab.click("#tome-generate")
    tab.wait_for_selector(".tome-pair:not(:has(input))", timeout=WAIT)
    tab.wait_for_selector(".tome-pair input", timeout=WAIT)
    assert tab.locator("#tome-result img").count() == 2


def test_a_server_that_is_gone_is_said(open_page: Any, address: str) -> None:
    tab = open_page()
    tab.route("**/generate", lambda route: route.fulfill(body='{"progress": "x", "share": 0.5}\n'))
    tab.click("#tome-generate")
    tab.wait_for_selector("text=does not answer", timeout=WAIT)
    assert tab.locator("#tome-progress").is_hidden()

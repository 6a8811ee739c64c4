"""The page in a real browser, as wide as a desktop and as a phone: opens, draws, cancels, survives a bad file."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tools.play.conftest import Page, data_of, is_held

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here; on Debian: apt-get install chromium"),
]
DESKTOP, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 844}
WAIT = 120_000  # milliseconds


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any, page: Page) -> Iterator[Callable[..., Any]]:
    """Opens the page; afterwards nothing has gone wrong in it, and it has asked no other host for anything."""
    contexts, wrong, hosts = [], [], set()

    def open_page(size: dict[str, int], locale: str = "en-US") -> Any:
        context = chromium.new_context(viewport=size, locale=locale, has_touch=size == PHONE)
        contexts.append(context)
        tab = context.new_page()
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("response", lambda answer: hosts.add(answer.url.split("/")[2]))
        tab.goto(page.address)
        tab.wait_for_selector("#tome-draw", timeout=WAIT)
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
    assert {host for host in hosts if host} == {f"127.0.0.1:{page.port}"}


@pytest.mark.parametrize(("size", "locale", "draw"), [(DESKTOP, "en-US", "Draw"), (PHONE, "zh-CN", "生成")])
def test_a_pair_is_drawn_and_slid(
    opened: Callable[..., Any], size: dict[str, int], locale: str, draw: str
) -> None:
    tab = opened(size, locale)
    assert tab.locator("#tome-draw").inner_text() == draw
    assert tab.locator(".tome-first").is_visible()
    tab.locator("#tome-preset input").last.check()  # settings of one's own, whose map is asked for
    tab.wait_for_selector("#tome-own", timeout=WAIT)
    tab.click("#tome-draw")
    tab.wait_for_selector(".tome-map img", timeout=WAIT)
    slider = tab.locator(".tome-pair input")
    assert slider.get_attribute("aria-label")
    slider.focus()
    for _ in range(4):
        slider.press("ArrowRight")
    assert tab.locator(".tome-pair").evaluate("pair => pair.style.getPropertyValue('--at')") == "52%"
    steps = tab.locator(".tome-map > input")
    steps.evaluate("input => {input.value = input.max; input.dispatchEvent(new Event('input'))}")
    assert tab.locator(".tome-map section:visible").count() == 1
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"
    assert tab.locator("#tome-draw").is_enabled()


def test_a_drawing_is_cancelled_and_the_next_one_drawn(opened: Callable[..., Any]) -> None:
    tab = opened(DESKTOP)
    tab.locator(".label-wrap").first.click()
    steps = tab.get_by_label("Steps")
    steps.fill("200")
    tab.click("#tome-draw")
    tab.wait_for_selector(".tome-status progress[max='200']", timeout=WAIT)
    assert tab.locator("#tome-draw").is_disabled()
    tab.click("#tome-cancel")
    tab.wait_for_selector("text=Cancelled.", timeout=WAIT)
    steps.fill("1")
    tab.click("#tome-draw")
    tab.wait_for_selector("text=Done.", timeout=WAIT)


class _Proxy(http.server.BaseHTTPRequestHandler):
    """Shows a server's page below a path of its own, and says by which name it was asked."""

    behind: str

    def do_GET(self) -> None:
        headers = {**self.headers, "X-Forwarded-Host": self.headers["Host"], "Host": self.behind, "Connection": "close"}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection = http.client.HTTPConnection(self.behind, timeout=WAIT / 1000)
        connection.request(self.command, self.path.removeprefix("/below"), body or None, headers)
        answer = connection.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() != "transfer-encoding":
                self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):  # the browser has closed the page
            while part := answer.read1():
                self.wfile.write(part)
        connection.close()

    do_POST = do_GET  # noqa: N815


def test_a_proxy_shows_the_page_below_a_path(chromium: Any, page: Page) -> None:
    proxy = type("Proxy", (_Proxy,), {"behind": page.address.removeprefix("http://")})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab = chromium.new_page(locale="en-US")
        tab.goto(f"http://127.0.0.1:{server.server_port}/below/")
        tab.wait_for_selector("#tome-draw", timeout=WAIT)
        assert "/below/en/" in tab.url
        tab.click("#tome-draw")
        tab.wait_for_selector("text=Done.", timeout=WAIT)
        tab.close()
        server.shutdown()


def test_bad_files_are_survived(
    opened: Callable[..., Any], page: Page, tmp_path: Path, bright_square: Image.Image
) -> None:
    (tmp_path / "picture.png").write_text("just a text")
    bright_square.transpose(Image.Transpose.TRANSVERSE).save(tmp_path / "photo.jpg", quality=61)
    tab = opened(PHONE)
    tab.locator("#tome-guide .label-wrap").click()
    chooser = tab.locator(".tome-choose input")
    chooser.set_input_files(tmp_path / "picture.png")
    tab.wait_for_selector("text=cannot be read as a picture", timeout=WAIT)
    chooser.set_input_files(tmp_path / "photo.jpg")
    tab.wait_for_selector(".tome-guide figure", timeout=WAIT)
    assert tab.locator(".tome-guide img").count() == 2
    assert tab.locator("text=cannot be read as a picture").count() == 0
    assert not is_held(data_of((tmp_path / "photo.jpg").read_bytes(), "image/jpeg")), "read, and not kept as it came"
    tab.click("#tome-draw")
    tab.wait_for_selector("text=Done.", timeout=WAIT)
    for session in tuple(page.room.desks._desks):
        page.room.desks.forget(session)  # as where the connection broke off
    tab.click("#tome-draw")
    tab.wait_for_selector("text=Your picture is no longer kept", timeout=WAIT)

"""The page over HTTP: what it draws and says, and that it serves nothing but itself."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ppdiffusers_tome.tools.cli.commands import play
from ppdiffusers_tome.tools.cli.program import main
from ppdiffusers_tome.tools.play.jobs import Job
from ppdiffusers_tome.tools.play.requests import OWN
from ppdiffusers_tome.tools.play.studio import Studio
from tools.cli.conftest import SMALL
from tools.play.conftest import Page, data_of, is_held, pictures_in, png_of, until

pytestmark = pytest.mark.once
STATUS, RESULT, FIGURES, MAP = range(4)


@pytest.fixture
def person(page: Page) -> Iterator[Callable[..., Any]]:
    """Opens the page in a language."""
    from gradio_client import Client

    clients = []

    def open_page(language: str = "en") -> Any:
        clients.append(Client(f"{page.address}/{language}/", verbose=False))
        return clients[-1]

    yield open_page
    for client in clients:
        client.close()


@pytest.fixture
def unhurried(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing waits at each step until the page has shown it: pictures of this size are drawn between two looks."""
    from ppdiffusers_tome.tools.play.page import _View

    changes, report = _View.changes, Job.report
    looked: dict[Job, int] = {}

    def look(view: Any) -> Any:
        version = view._job.version
        parts = changes(view)
        looked[view._job] = version
        return parts

    def wait(job: Job, stage: str, done: int, calls: int) -> None:
        report(job, stage, done, calls)
        until(lambda: job.cancelled or looked.get(job, 0) >= job.version)

    monkeypatch.setattr(_View, "changes", look)
    monkeypatch.setattr(Job, "report", wait)


@pytest.fixture
def draw(studio: Studio, unhurried: None) -> Callable[..., list[Any]]:
    """Presses the button with the form as it is, other than as is said; returns all that the page showed."""

    def press(client: Any, **other: Any) -> list[Any]:
        begin = studio.plain
        form = {
            "prompt": studio.prompt, "preset": OWN, "method": "tome", "ratio": 0.5, "with_map": False, "seed": 0,
            "width": begin.width, "height": begin.height, "steps": 1, "guidance": begin.guidance_scale, "negative": "",
            "low": 100, "high": 200, "strength": 1, "showing": False,
        }  # fmt: skip
        job = client.submit(*{**form, **other}.values(), api_name="/draw")
        job.result(timeout=120)
        return job.outputs()

    return press


def last_of(shown: list[Any], part: int) -> str:
    """What a part of the page shows at the end."""
    return next((state[part] for state in reversed(shown) if isinstance(state[part], str)), "")


def test_a_pair_is_drawn_with_its_figures_and_map(
    person: Callable[..., Any], draw: Callable[..., list[Any]], studio: Studio
) -> None:
    shown = draw(person(), with_map=True, seed=1)
    assert "Done." in last_of(shown, STATUS)
    merged, unmerged = pictures_in(last_of(shown, RESULT))
    assert unmerged.shape == (studio.plain.height, studio.plain.width, 3)
    assert not np.array_equal(merged, unmerged)
    for said in ("speed-up", "PSNR", "SSIM", "seconds", "peak memory", "ratio 0.5"):
        assert said in last_of(shown, FIGURES)
    assert "tokens merged away" in last_of(shown, MAP)
    assert len(pictures_in(last_of(shown, MAP))) == 2
    statuses = [state[STATUS] for state in shown]
    assert any("Drawing without token merging · step" in status for status in statuses)
    assert any("Drawing with token merging · step" in status for status in statuses)
    assert last_of(shown, FIGURES).count("remembered") == 0


def test_another_ratio_draws_the_merged_picture_alone(
    person: Callable[..., Any], draw: Callable[..., list[Any]]
) -> None:
    client = person()
    first = draw(client, seed=2)
    second = draw(client, seed=2, ratio=0.3)
    assert not any("without token merging" in str(state[STATUS]) for state in second)
    assert "is remembered" in last_of(second, FIGURES)
    assert np.array_equal(pictures_in(last_of(first, RESULT))[1], pictures_in(last_of(second, RESULT))[1])
    assert any("without token merging" in str(state[STATUS]) for state in draw(person(), seed=2)), "of somebody else"


def test_the_map_of_another_picture_does_not_stay(
    person: Callable[..., Any], draw: Callable[..., list[Any]]
) -> None:
    client = person()
    assert "tome-map" in last_of(draw(client, with_map=True, seed=8), MAP)
    assert "" in [state[MAP] for state in draw(client, ratio=0.3, seed=8)]


def test_of_two_presses_the_page_shows_the_last(person: Callable[..., Any], studio: Studio) -> None:
    client = person()

    def press(seed: int, steps: int) -> Any:
        return client.submit(
            studio.prompt, "balanced", "tome", 0.5, False, seed, 64, 64, steps, 3, "", 100, 200, 1, False,
            api_name="/draw",
        )  # fmt: skip

    first = press(7, 200)
    until(lambda: bool(first.outputs()))  # two at once may arrive in either order
    second = press(8, 1)
    for each in (first, second):
        each.result(timeout=120)
    assert "Cancelled." not in str(first.outputs())
    assert "Done." in last_of(second.outputs(), STATUS)


@pytest.mark.parametrize(
    ("language", "other", "said"),
    [
        ("en", {"prompt": "  "}, "The prompt is blank"), ("zh", {"prompt": ""}, "提示词为空"),
        ("en", {"seed": 2**60}, "Seed "), ("zh", {"height": 100}, "请填 8 的倍数"),
        ("en", {"width": None}, "multiple of 8"), ("en", {"ratio": 0.75}, "do not work"),
        ("en", {"preset": OWN, "ratio": 0}, "nothing to compare"), ("en", {"steps": 10**6}, "from 1 to 200"),
        ("zh", {"height": 80_000, "width": 80_000}, "内存不够"), ("en", {"guidance": -1}, "Guidance scale -1"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_said_in_words(
    person: Callable[..., Any], draw: Callable[..., list[Any]], language: str, other: dict[str, Any], said: str
) -> None:
    (shown,) = draw(person(language), **other)
    assert said in shown[STATUS]
    assert "tome-wrong" in shown[STATUS]
    assert "Traceback" not in str(shown)


def test_a_prompt_is_never_html(person: Callable[..., Any], draw: Callable[..., list[Any]]) -> None:
    shown = draw(person(), prompt="<img src=x onerror=alert(1)>")
    assert "<img src=x" not in str(shown)
    assert "&lt;img src=x" in last_of(shown, FIGURES), "the bundled model says that it knows no such prompt"


def test_a_photo_guides_its_person_alone(
    person: Callable[..., Any], draw: Callable[..., list[Any]], bright_square: Image.Image
) -> None:
    me, you = person(), person()
    box, seen, showing = me.predict(png_of(bright_square), 100, 200, api_name="/photo")
    assert (box, showing) == ("", True)
    photo, edges = pictures_in(seen)
    assert np.array_equal(photo, np.asarray(bright_square))
    assert edges.max() == 255
    mine, yours = (pictures_in(last_of(draw(each, seed=4), RESULT))[1] for each in (me, you))
    assert not np.array_equal(mine, yours)
    me.predict(api_name="/remove")
    assert np.array_equal(pictures_in(last_of(draw(me, seed=4), RESULT))[1], yours)


def test_a_photo_that_was_forgotten_is_not_passed_over(
    page: Page, person: Callable[..., Any], draw: Callable[..., list[Any]], bright_square: Image.Image
) -> None:
    client = person()
    assert client.predict(png_of(bright_square), 100, 200, api_name="/photo")[-1] is True
    page.room.desks.forget(client.session_hash)  # as where the connection broke off, and the page is still open
    (shown,) = draw(client, showing=True)
    assert "Your picture is no longer kept" in shown[STATUS]
    assert client.predict(api_name="/remove")[-1] is False


def test_a_photo_is_kept_by_the_room_alone(page: Page, bright_square: Image.Image) -> None:
    address = png_of(bright_square.rotate(90))  # that no other test sends
    body = json.dumps({"data": [address, 100, 200], "session_hash": "somebody"}).encode()
    status, answer = request(page, "POST", "/en/gradio_api/run/photo", body, Content_Type="application/json")
    assert status == 200
    assert len(pictures_in(json.loads(answer)["data"][1])) == 2
    assert page.room.desks.of("somebody").photo is not None
    until(lambda: not is_held(address))  # the answer is here before the server has put the request away


def test_bad_files_are_refused_in_words(person: Callable[..., Any]) -> None:
    client = person()
    for address, said in (
        (data_of(b"a text that is called picture.png"), "cannot be read as a picture"),
        (png_of(Image.new("RGB", (1, 1))), "1x1 pixels"),
        ("large", "larger than 20 MiB"),
    ):
        assert said in client.predict(address, 100, 200, api_name="/photo")[1]


def test_a_drawing_can_be_cancelled(person: Callable[..., Any], studio: Studio) -> None:
    client = person()
    job = client.submit(
        studio.prompt, "balanced", "tome", 0.5, False, 7, 64, 64, 200, 3, "", 100, 200, 1, False, api_name="/draw"
    )
    until(lambda: any('max="200"' in str(state) for state in job.outputs()))
    client.predict(api_name="/cancel")
    job.result(timeout=60)
    assert "Cancelled." in job.outputs()[-1][STATUS]


def request(page: Page, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """A request as it is written here: clients would tidy the path up."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(("accepted", "code"), [("zh-CN,zh;q=0.9", "zh"), ("en", "en"), ("fr", "en")])
def test_the_page_is_in_the_browsers_language(page: Page, accepted: str, code: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    connection.request("GET", "/", headers={"Accept-Language": accepted})
    assert connection.getresponse().headers["location"] == f"{code}/"
    connection.close()


DISK = [
    f"{page}{rest}"
    for page in ("/en", "/zh", "/en/gradio_api", "")
    for rest in (
        "/file=/etc/passwd", "/file%3D/etc/passwd", "/file=../../../../etc/passwd", "/file//etc/passwd",
        "/file=https://example.org/", "/proxy=http://127.0.0.1/", "/static/../../../../../etc/passwd",
        "/static/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd", "/static/..%2f..%2froutes.py", "/assets//etc/passwd",
        "/assets/%2fetc/passwd", "/custom_component/1/client/component/x", "/../../../../etc/passwd",
        "/stream/a/1/1/playlist-file", "/monitoring", "/dev/reload", "/docs", "/openapi.json", "/svelte/x",
        "/static/\\..\\..\\..\\routes.py", "/upload_progress?upload_id=x", "/token", "/login_check",
    )
]  # fmt: skip


@pytest.mark.parametrize("path", DISK)
def test_nothing_of_the_disk_and_of_others_is_served(page: Page, path: str) -> None:
    status, content = request(page, "GET", path)
    assert status in (403, 404)
    assert b"root:" not in content


@pytest.mark.parametrize("path", ["/en/gradio_api/upload", "/zh/gradio_api/run/draw", "/login"])
def test_files_are_not_taken_and_the_line_is_not_passed(page: Page, path: str) -> None:
    assert request(page, "POST", path, b"{}")[0] == 404


def test_a_path_in_place_of_a_picture_is_no_picture(person: Callable[..., Any]) -> None:
    for given in ("/etc/passwd", "file:///etc/passwd", "https://example.org/picture.png"):
        assert "cannot be read as a picture" in person().predict(given, 100, 200, api_name="/photo")[1]


def test_pages_of_other_sites_can_do_nothing(page: Page) -> None:
    join = "/en/gradio_api/queue/join"
    assert request(page, "POST", join, b"{}", Sec_Fetch_Site="cross-site")[0] == 403
    assert request(page, "GET", "/en/config", Sec_Fetch_Site="cross-site")[0] == 403
    assert request(page, "GET", "/en/", Sec_Fetch_Site="cross-site")[0] == 200, "a link to the page"
    assert request(page, "POST", join, b"{}", Sec_Fetch_Site="same-origin")[0] == 422
    assert request(page, "POST", join, b"{}", Sec_Fetch_Site="same-site")[0] == 403, "another port, or subdomain"


@pytest.mark.parametrize(
    ("origin", "others", "status"),
    [
        ("http://evil.example", {}, 403), ("null", {}, 403), ("http://192.168.1.5", {}, 403), ("http://[", {}, 403),
        ("http://192.168.1.5:7860", {}, 422), ("http://draw.example.org", {}, 422),
        ("http://shown.example", {"X_Forwarded_Host": "shown.example, inner.example"}, 422),
    ],
)  # fmt: skip
def test_without_https_the_origin_tells_pages_of_other_sites(
    page: Page, origin: str, others: dict[str, str], status: int
) -> None:
    """Browsers say Sec-Fetch-Site of other machines by https alone."""
    join, host = "/en/gradio_api/queue/join", "192.168.1.5:7860"
    assert request(page, "POST", join, b"{}", Host=host, Origin=origin, **others)[0] == status


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("evil.example", False), ("evil.example:7860", False), ("127.0.0.1.evil.example", False), ("", False),
        ("localhost.evil.example", False), ("[", False), ("localhost:8000", True), ("a.localhost", True),
        ("127.0.0.1", True), ("[::1]:7860", True), ("draw.example.org", True), ("DRAW.example.org.:80", True),
    ],
)  # fmt: skip
def test_another_sites_name_that_leads_here_opens_nothing(page: Page, host: str, known: bool) -> None:
    for method, path in (("GET", "/"), ("GET", "/en/config"), ("POST", "/en/gradio_api/queue/join")):
        status, said = request(page, method, path, b"{}" if method == "POST" else None, Host=host)
        assert (status != 403) is known
        assert (b"--allow-host" in said) is not known


def test_where_others_may_open_the_page_any_name_leads_to_it() -> None:
    from ppdiffusers_tome.tools.play.serving import listen, names_for

    with listen("0.0.0.0", 0) as everywhere, listen("localhost", 0) as here:
        assert names_for(everywhere, "0.0.0.0", []) is None
        assert names_for(everywhere, "0.0.0.0", ["A.example"]) == {"a.example", "0.0.0.0"}
        assert names_for(here, "localhost", []) == {"localhost"}


def test_bodies_have_an_end(page: Page) -> None:
    join = "/en/gradio_api/queue/join"
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    connection.putrequest("POST", join)
    connection.putheader("Content-Length", str(2**30))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    assert request(page, "DELETE", join)[0] == 405
    assert request(page, "POST", join, b"0\r\n\r\n", Content_Length="5", Transfer_Encoding="chunked")[0] == 411
    assert request(page, "POST", join, b" " * 2**21)[0] == 413, "what gradio keeps is short"


def test_pages_tell_themselves_where_they_are_whatever_the_browser_can_unpack(page: Page) -> None:
    content = request(page, "GET", "/en/", Accept_Encoding="gzip, br, zstd")[1]
    assert content.count(b"window.gradio_config.root = location.origin") == 1
    assert content.index(b"window.gradio_config =") < content.index(b"window.gradio_config.root =")


def test_nothing_is_asked_of_other_hosts(page: Page) -> None:
    """The browser keeps to the policy, whatever gradio's page asks for; test_browser.py looks."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    connection.request("GET", "/en/")
    answer = connection.getresponse()
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    config = json.loads(request(page, "GET", "/en/config")[1])
    assert config["analytics_enabled"] is False
    assert not [sheet for sheet in config["stylesheets"] if sheet.startswith("http")]
    answer.read()
    connection.close()


def test_whoever_leaves_is_forgotten(page: Page, person: Callable[..., Any], bright_square: Image.Image) -> None:
    client = person()
    client.predict(png_of(bright_square), 100, 200, api_name="/photo")
    assert page.room.desks.of(client.session_hash).photo is not None
    heart = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    heart.request("GET", f"/en/gradio_api/heartbeat/{client.session_hash}")
    heart.getresponse().read(5)
    heart.close()
    until(lambda: page.room.desks.of(client.session_hash).photo is None)


def test_nothing_is_written_to_the_disk(
    person: Callable[..., Any], draw: Callable[..., list[Any]], bright_square: Image.Image, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("TMPDIR", "GRADIO_TEMP_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    client = person()
    client.predict(png_of(bright_square), 100, 200, api_name="/photo")
    client.predict(data_of(b"no picture"), 100, 200, api_name="/photo")
    draw(client, with_map=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


class TestCommand:
    """The command itself."""

    def test_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr(play.importlib.util, "find_spec", lambda name: None)
        assert main(["play"]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert 'pip install "gradio>=5.14,<5.15"' in said

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--host", "203.0.113.7"], "--host 203.0.113.7 is not an address of this machine"),
            (["--host", "no such host"], "--host no such host is not an address of this machine"),
            (["--port", "70000"], "--port 70000 must be from 0 to 65535"),
            (["--prompt", "a", "--prompt", "b"], "2 prompts were given"), (["--steps", "0"], "--steps 0"),
            (["--steps", "201"], "--steps 201 is more than"), (["--seed", str(2**53)], "--seed 9007199254740992 is"),
            (["--prompt", " "], "is empty"), (["--model", "./nowhere"], "does not exist"),
        ],
    )  # fmt: skip
    def test_refuses_in_a_line(self, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("gradio")
        assert main(["play", *arguments]) == 2
        assert said in capsys.readouterr().err

    def test_says_that_a_port_is_taken(self, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("gradio")
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            assert main(["play", "--port", str(port)]) == 2
        assert f"--port {port} is taken by another program; give another" in capsys.readouterr().err

    def test_warns_where_others_can_open_it(self, capfd: pytest.CaptureFixture[str]) -> None:
        from ppdiffusers_tome.tools.play.serving import listen, tell_where

        for host, warned in (("127.0.0.1", False), ("0.0.0.0", True), ("localhost", False)):
            with listen(host, 0) as listening:
                tell_where(listening)
            told = capfd.readouterr()
            assert ("warning: every machine" in told.err) is warned
            assert told.out.startswith("http://")

    def test_serves_until_it_is_interrupted(self) -> None:
        pytest.importorskip("gradio")
        command = [sys.executable, "-m", "ppdiffusers_tome", "play", "--port", "0", "--language", "zh", *SMALL]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # the tests may run where it is ignored
        ) as program:  # fmt: skip
            try:
                assert program.stdout is not None
                address = program.stdout.readline().split()[0]
                served = Page(None, int(address.rstrip("/").rpartition(":")[2]))
                assert request(served, "GET", "/zh/")[0] == 200
                heart = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
                heart.request("GET", "/zh/gradio_api/heartbeat/somebody")
                assert heart.getresponse().read(5) == b"data:", "a page is open"
                program.send_signal(signal.SIGINT)
                assert program.wait(timeout=60) == 130
            finally:
                program.kill()
            assert program.stderr is not None
            said = program.stderr.read()
            assert "Traceback" not in said
            assert "ERROR" not in said

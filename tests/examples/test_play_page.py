"""The page over HTTP: what it generates and answers, and to whom."""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ppdiffusers_tome.errors import ToMeError
from ppdiffusers_tome.tools.generation.results import GeneratedImage
from ppdiffusers_tome.tools.generation.tome_arguments import DEFAULT_PRESET
import words
from page import StudioPage
from studio import Studio, read_photo
from tools.cli.conftest import SMALL, draw_square
from examples.playing import FOLDER, encode_image, make_form

pytestmark = pytest.mark.once


class User:
    """An open page, by Gradio's protocol; gradio_client cannot read the schema of an upload."""

    def __init__(self, address: str, studio: Studio) -> None:
        self.address, self.studio, self.session = address, studio, os.urandom(8).hex()
        functions = json.loads(request(address, "GET", "/config")[1])["dependencies"]
        self._numbers = {function["api_name"]: function["id"] for function in functions}

    def start(self, name: str, *data: Any) -> None:
        body = {"data": data, "fn_index": self._numbers[name], "session_hash": self.session}
        join, headers = "/gradio_api/queue/join", {"Content-Type": "application/json"}
        assert request(self.address, "POST", join, json.dumps(body).encode(), **headers)[0] == 200

    def finish(self) -> Any:
        return self.watch()[-1]

    def watch(self) -> list[Any]:
        """Return everything that is shown one after the other, or the error."""
        events = request(self.address, "GET", f"/gradio_api/queue/data?session_hash={self.session}")[1].decode()
        shown = map(json.loads, re.findall("^data: (.*)$", events, re.MULTILINE))
        outputs = [each["output"] for each in shown if each["msg"] in ("process_generating", "process_completed")]
        return [output["error"] if output.get("error") else output["data"] for output in outputs]

    def call(self, name: str, *data: Any) -> Any:
        self.start(name, *data)
        return self.finish()

    def press(self, **fields: Any) -> Any:
        """Press the button, and return what the page shows and keeps, or the error."""
        return self.call("_generate", None, None, *make_form(self.studio, **fields).values())

    def generate(self, **fields: Any) -> str:
        return str(self.press(**fields)[0])

    def upload(self, content: bytes) -> Any:
        body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n' + content + b"\r\n--x--"
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        (path,) = json.loads(request(self.address, "POST", "/gradio_api/upload", body, **headers)[1])
        return self.call("_read_photo", {"path": path, "meta": {"_type": "gradio.FileData"}})


@pytest.fixture
def user(address: str, studio: Studio) -> Callable[..., User]:
    return partial(User, address, studio)


def find_images(html: str) -> list[np.ndarray]:
    found = re.findall(r"data:image/png;base64,([\w+/=]+)", html)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")) for data in found]


def test_a_comparison_has_two_images_and_figures(user: Callable[..., User], studio: Studio) -> None:
    me = user()
    html = me.generate(seed=1, cache=0.3)
    merged, unmerged = find_images(html)
    assert merged.shape == unmerged.shape
    assert not np.array_equal(merged, unmerged)
    for words in ("speed-up", "PSNR", "SSIM", "seconds", "peak memory", "ratio 0.5", "cache 0.3"):
        assert words in html
    me.start("_generate", None, None, *make_form(studio, seed=5).values())
    first, *_, last = me.watch()  # the unmerged image is there before the merged one
    assert ["tome-first" in str(first), "tome-pair" in str(last)] == [True, True]
    assert "follows" not in str(first), "it would stay where the user cancels"
    me.generate(seed=1)
    again = me.generate(seed=1, ratio=0.3)
    assert "are those of before" in again
    assert np.array_equal(find_images(again)[1], unmerged)
    other = user().generate(seed=1, prompt="<img src=x>")
    assert "are those of before" not in other, "one user's images are not another's"
    assert "<img src=x" not in other


def test_the_page_begins_with_the_preset_of_the_commands(address: str) -> None:
    components = json.loads(request(address, "GET", "/config")[1])["components"]
    values = {part["props"].get("label"): part["props"].get("value") for part in components}
    assert (values["Token merging"], values["Ratio"], values["Cache over steps"]) == (DEFAULT_PRESET, 0.5, 0)


def test_cancelling_ends_a_running_comparison(
    user: Callable[..., User], studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, compare, begun = user(), studio.compare, threading.Event()
    monkeypatch.setattr(studio, "compare", lambda *given: begun.set() or compare(*given))
    me.start("_generate", None, None, *make_form(studio, steps=200, seed=8).values())
    assert begun.wait(60)
    me.start("_cancel")
    assert "tome-pair" not in str(me.watch())
    assert "tome-pair" in user().generate(seed=8)


def test_a_comparison_that_ends_late_leaves_the_next_one_cancellable(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gradio as gr

    page, user = StudioPage(studio, "en"), gr.Request(session_hash="me")
    image = GeneratedImage(Image.new("RGB", (8, 8)), 1.0, None, None)
    monkeypatch.setattr(studio, "compare", lambda *_: iter([image, image]))
    values = make_form(studio).values()
    first, second = (page._generate(user, None, None, None, *values) for _ in range(2))
    for comparison in (first, second):
        next(comparison)
    first.close()
    page._cancel(user)
    (request,) = page._running.values()
    assert request.cancelled.is_set()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": "  "}, "A field is empty"), ({"height": 105}, "Height and width must be multiples of 8"),
        ({"ratio": 0.75}, "could not be generated: ratio=0.75 must"), ({"has_photo": True}, "choose it again"),
        ({"cache": 1.5}, "cache=1.5 must"), ({"seed": None}, "A field is empty"),
        ({"low": 300}, "Canny low must not be above Canny high"),
        ({"negative_prompt": "red", "guidance": 1}, "A negative prompt has no effect at guidance 1 or less"),
        ({"preset": "none", "cache": 0.2, "steps": 5}, "change nothing: of 5 steps the cache skips none. Take 9 steps"),
        ({"preset": "none", "cache": 0, "steps": 20}, "change nothing: of 20 steps the cache skips none"),
        ({"seed": -1}, "less than minimum value 0"), ({"steps": 201}, "greater than maximum value 200"),
    ],
)  # fmt: skip
def test_refusals_are_in_words(user: Callable[..., User], fields: dict[str, Any], words: str) -> None:
    assert words in user().press(**fields)


def test_failures_are_in_words_and_the_next_comparison_works(
    user: Callable[..., User], studio: Studio, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def raise_memory_error(*_: Any, **__: Any) -> None:
        raise MemoryError

    me = user()
    for fault, words in ((raise_memory_error, "not enough memory"), (None, "the reason is on the terminal")):
        with monkeypatch.context() as patch:
            patch.setattr(studio.plain.pipe, "encode_prompt", fault)
            assert words in me.press(seed=9)
    assert "Traceback" in capfd.readouterr().err
    assert "tome-pair" in me.generate(seed=9)


def test_a_photo_guides_its_user_alone(user: Callable[..., User], studio: Studio) -> None:
    me, you = user(), user()
    me.upload(encode_image(draw_square()))
    (_, guided, edges), (_, free) = (find_images(each.generate(seed=4)) for each in (me, you))
    assert edges.max() == 255
    assert not np.array_equal(guided, free)
    cut_off, too_large = encode_image(draw_square())[:-200], encode_image(Image.new("1", (13000, 13000)))
    for content in (b"<svg/>", b"%!PS-Adobe-3.0 EPSF-3.0\n", cut_off, too_large):
        assert "cannot be read; choose an image of at most 89 megapixels, of PNG" in you.upload(content)
    assert read_photo(encode_image(Image.new("L", (4096, 1024)))).size == (2048, 512)


def test_words_have_the_same_placeholders_in_both_languages_and_are_used() -> None:
    source = "".join(path.read_text("utf-8") for path in FOLDER.glob("*.py"))
    for key, texts in words.WORDS.items():
        english, chinese = ({name for _, name, _, _ in Formatter().parse(text) if name} for text in texts)
        assert english == chinese, key
        used = key.removesuffix("_info")  # of a slider, beside its name
        assert source.count(f'"{used}"') + source.count(f"'{used}'") > 1, f"{key} is used"


def request(
    address: str, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    """Send a request as it is written here."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read(), response.headers
    finally:
        connection.close()


def test_names_of_other_sites_lead_nowhere_and_files_are_not_served_or_read(address: str, studio: Studio) -> None:
    for host in ("localhost:8000", "127.0.0.1", "[::1]:7860", "evil.example:7860"):
        assert request(address, "GET", "/config", Host=host)[0] == (400 if "evil" in host else 200)
    for path in ("/gradio_api/file=/etc/passwd", "/static/../../../../../etc/passwd"):
        assert request(address, "GET", path)[0] in (403, 404)
    with pytest.raises(ToMeError, match="there is no preset"):
        studio.prepare(make_form(studio, preset=__file__), None)


def test_the_command_serves_until_it_is_interrupted_and_leaves_no_file(tmp_path: Path) -> None:
    pytest.importorskip("gradio")
    command = [sys.executable, str(FOLDER), "--port", "0", "--host", "0.0.0.0", *SMALL]
    # With a proxy of SOCKS, for which Gradio's client has no package.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path), "all_proxy": "socks5://127.0.0.1:9"}
    with subprocess.Popen(
        [*command, "--language", "zh"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # pytest may run where it is ignored
    ) as program:  # fmt: skip
        try:
            assert program.stdout is not None
            line = program.stdout.readline()
            address = line.split()[0].removeprefix("http://").rstrip("/")
            assert request(address, "GET", "/", Host="any.example")[0] == 200
            assert "生成" in json.dumps(json.loads(request(address, "GET", "/config")[1]), ensure_ascii=False)
            heartbeat = http.client.HTTPConnection(address, timeout=60)
            heartbeat.request("GET", "/gradio_api/heartbeat/somebody")
            assert heartbeat.getresponse().read(5) == b"data:", "a page is open"
            program.send_signal(signal.SIGINT)
            assert program.wait(timeout=60) == 130
        finally:
            program.kill()
        assert program.stderr is not None
        errors = program.stderr.read()
    assert "warning: every machine" in errors
    assert "Traceback" not in errors
    assert not list(tmp_path.rglob("ppdiffusers-tome-play*"))

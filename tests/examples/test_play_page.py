"""The page over HTTP: what it generates and answers, to whom, and in which words."""

import base64
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
import pytest
from PIL import Image
from studio import Studio
from words import LANGUAGES, WORDS, translate

from examples.helpers import EXAMPLES, encode_image, encode_photo, load_program, make_form
from ppdiffusers_tome.errors import ToMeError, UncompilableError
from ppdiffusers_tome.tools.cli.program import run_command
from tools.cli.helpers import SMALL, draw_square

FOLDER = EXAMPLES / "play"
# Attributes that hold words.
WORDED = ("alt", "title", "placeholder", "aria-label", "data-waiting", "data-cancelled", "data-offline", "data-large")


def request(
    address: str, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read(), response.headers


def post(address: str, form: dict[str, Any], **headers: str) -> tuple[int, list[dict[str, Any]]]:
    """Send a form, and return all that the page is to show."""
    body = json.dumps(form).encode()
    status, answer, _ = request(address, "POST", "/generate", body, **{"Content_Type": "application/json", **headers})
    return status, [json.loads(line) for line in answer.splitlines()] if status == 200 else []


def generate(address: str, studio: Studio, **fields: Any) -> dict[str, Any]:
    """Return the last event, with all notices in it."""
    _, events = post(address, make_form(studio, **fields))
    assert [event.get("is_last", False) for event in events] == [False] * (len(events) - 1) + [True]
    return events[-1] | {"notice": " ".join(filter(None, (event.get("notice") for event in events)))}


def leave(address: str, form: dict[str, Any], *, sign: str) -> None:
    """Send a form, read up to a sign, and close the connection, as "Cancel" does."""
    body, (host, port) = json.dumps(form).encode(), address.split(":")
    head = f"POST /generate HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        with connection.makefile() as answer:
            assert any(sign in line for line in answer)


def find_images(html: str) -> list[np.ndarray]:
    found = re.findall(r"data:image/png;base64,([\w+/=]+)", html)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")) for data in found]


def test_a_comparison_has_two_images_and_figures(address: str, studio: Studio) -> None:
    html = generate(address, studio, seed=1, cache=0.3)["html"]
    merged, unmerged = find_images(html)
    assert merged.shape == unmerged.shape
    assert not np.array_equal(merged, unmerged)
    for words in ("speed-up", "PSNR", "SSIM", "seconds", "peak memory", "ratio 0.5", "cache 0.3"):
        assert words in html
    _, events = post(address, make_form(studio, seed=5))
    first, last = (event["html"] for event in events if "html" in event)  # the unmerged image is there first
    assert [len(find_images(html)) for html in (first, last)] == [1, 2]
    assert "follows" not in first, "it would stay where the user cancels"
    stages = dict.fromkeys(event["progress"].partition(":")[0] for event in events if "progress" in event)
    assert next(iter(stages)) in ("Generating the unmerged image", "Warming up, not timed")
    assert {*stages} >= {"Generating the unmerged image", "Generating with your settings"}
    generate(address, studio, seed=1)
    again = generate(address, studio, seed=1, ratio=0.3)["html"]
    assert "are those of before" in again
    assert np.array_equal(find_images(again)[1], unmerged)
    other = generate(address, studio, seed=1, prompt="<img src=x>")
    assert "are those of before" not in other["html"]
    assert "<img src=x" not in other["html"] + other["notice"]


def test_leaving_ends_the_running_comparison_and_those_that_wait(address: str, studio: Studio) -> None:
    """As "Cancel" and "Generate" clicked in turns do, while one step takes long."""
    calls, gate = list[None](), threading.Event()

    def hold_step(*_: Any) -> None:
        calls.append(None)
        assert gate.wait(60)

    hook = studio.plain.pipe.unet.register_forward_post_hook(hold_step)
    try:
        for number in range(20):
            leave(address, make_form(studio, steps=200, seed=8), sign="notice" if number else "progress")
        gate.set()
        assert "tome-pair" in generate(address, studio, seed=8)["html"]
    finally:
        hook.remove()
    assert len(calls) <= 1 + 4, "the step that ran, and at most a warm-up and a step for each image"


REFUSALS = [
    ({"prompt": "  "}, "empty", {}), ({"low": 300}, "bad_thresholds", {}),
    ({"height": 105}, "bad_multiple", {"field": "height", "least": 8, "most": 65536, "step": 8}),
    ({"ratio": 0.75}, "bad_number", {"field": "ratio", "least": 0.05, "most": 0.7}),
    ({"cache": 1.5}, "bad_number", {"field": "cache", "least": 0, "most": 0.7}),
    ({"seed": None}, "bad_whole", {"field": "seed", "least": 0, "most": 2**53 - 1, "step": 1}),
    ({"seed": -1}, "bad_whole", {"field": "seed", "least": 0, "most": 2**53 - 1, "step": 1}),
    ({"steps": 201}, "bad_whole", {"field": "steps", "least": 1, "most": 200, "step": 1}),
    ({"steps": "5"}, "bad_whole", {"field": "steps", "least": 1, "most": 200, "step": 1}),
    ({"guidance": float("nan")}, "bad_number", {"field": "guidance", "least": 0, "most": 100}),
    ({"negative_prompt": "red", "guidance": 1}, "bad_negative", {}),
    ({"preset": "none", "cache": 0.2, "steps": 5}, "no_change", {"steps": 5, "least": 9}),
    ({"preset": "none", "cache": 0, "steps": 20}, "no_change", {"steps": 20, "least": 9}),
    *(({"photo": encode_photo(content)}, "no_image", {"most": 89, "formats": "PNG, JPEG, WEBP, GIF, BMP, TIFF"})
      for content in (b"", b"<svg/>", b"%!PS-Adobe-3.0 EPSF-3.0\n", encode_image(draw_square())[:-60],
                      Image.new("1", (13000, 13000)))),
]  # fmt: skip


@pytest.mark.parametrize("language", LANGUAGES)
def test_refusals_are_in_the_words_of_the_page(
    address: str, chinese_address: str, studio: Studio, language: str
) -> None:
    for fields, reason, values in REFUSALS:
        last = generate({"en": address, "zh": chinese_address}[language], studio, **fields)
        assert (last["notice"], last.get("is_error")) == (translate(language, reason, **values), True), fields


def test_what_a_small_model_does_not_know_is_said_before_it_generates(address: str, studio: Studio) -> None:
    _, events = post(address, make_form(studio, prompt="a photo of a dog"))
    notice = next(number for number, event in enumerate(events) if event.get("notice"))
    assert notice < next(number for number, event in enumerate(events) if "progress" in event)
    assert "The prompt names nothing that this model knows: an astronaut, a cat" in events[notice]["notice"]
    assert "knows" not in generate(address, studio, prompt="a photo of a cat")["notice"]


def test_failures_are_in_words_and_the_next_comparison_works(
    address: str, studio: Studio, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(error: Exception) -> Callable[..., None]:
        def raise_error(*_: Any, **__: Any) -> None:
            raise error

        return raise_error

    for fault, words in (
        (fail(MemoryError()), "not enough memory"), (None, "the reason is on the terminal"),
        (fail(UncompilableError("UNet cannot be compiled")), "--compile: UNet cannot be compiled; omit --compile"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(studio.plain.pipe, "encode_prompt", fault)
            assert words in generate(address, studio, seed=9)["notice"]
    assert "Traceback" in capfd.readouterr().err
    assert "tome-pair" in generate(address, studio, seed=9)["html"]


def test_a_photo_guides_its_user_alone(address: str, studio: Studio) -> None:
    _, guided, edges = find_images(generate(address, studio, seed=4, photo=encode_photo(draw_square()))["html"])
    _, free = find_images(generate(address, studio, seed=4)["html"])
    assert edges.max() == 255
    assert not np.array_equal(guided, free)


def test_words_have_the_same_placeholders_in_both_languages_and_are_used() -> None:
    source = "".join(path.read_text("utf-8") for path in FOLDER.iterdir() if path.suffix in (".py", ".html"))
    source += (FOLDER.parents[1] / "ppdiffusers_tome/tools/generation/loaded_pipeline.py").read_text("utf-8")
    for key, texts in WORDS.items():
        english, chinese = ({name for _, name, _, _ in Formatter().parse(text) if name} for text in texts)
        assert english == chinese, key
        used = len(re.findall(rf"""[$"']{key}\b""", source)) - 1
        assert used or key in ("none", "own", "given"), f"{key} is used"


class _Page(HTMLParser):
    """What a page says and what it loads."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts, self.addresses, self._is_prompt = list[str](), list[str](), False
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._is_prompt = ("class", "example") in attributes
        for name, value in attributes:
            if name in ("src", "href", "srcset", "action", "poster", "data", "content") and value:
                self.addresses.append(value)
            if name in WORDED:
                self.texts.append(str(value))

    def handle_data(self, data: str) -> None:
        if data.strip() and not self._is_prompt:
            self.texts.append(data.strip())


def test_a_page_in_chinese_has_no_sentence_in_english(chinese_address: str, studio: Studio) -> None:
    """But for prompts, which the model reads in English."""
    given = {"steps": 9, "cache": 0.3, "prompt": "a dog " * 40, "negative_prompt": "red " * 80}
    html = request(chinese_address, "GET", "/")[1].decode()
    assert '<html lang="zh-CN">' in html
    _, events = post(chinese_address, make_form(studio, **given))
    said = [event[name] for event in events for name in ("notice", "progress") if event.get(name)]
    said += [text for page in (html, events[-1]["html"]) for text in _Page(page).texts]
    for words in ("9 次调用", "提示词里没有", "负向提示词过长", "此尺寸下", "共 9 步", "种子 ", "已取消", "等待中"):
        assert any(words in text for text in said), words
    known = "“.*”|(?:, )?(?:" + "|".join(map(re.escape, studio.plain.settings.model.subjects)) + ")"
    english = [text for text in said if re.search("[A-Za-z]+( [A-Za-z]+){2}|^[a-z ]+$", re.sub(known, "", text))]
    assert english == ["balanced", "quality", "keys", "todo", "tome"], "names alone"
    template = re.sub(r"<[^>]*>|\$\w+", "", (FOLDER / "page.html").read_text("utf-8"))
    assert template.strip() == "", "every word of it comes from WORDS"


def test_the_page_loads_nothing_from_elsewhere(address: str, studio: Studio) -> None:
    status, body, headers = request(address, "GET", "/")
    html = body.decode() + generate(address, studio)["html"]
    for link in _Page(html).addresses:
        assert link.startswith("data:") or not re.match(r"\s*([a-z][a-z0-9+.-]*:|[/\\]{2})", link, re.IGNORECASE)
    linked = [link for link in _Page(html).addresses if link.startswith("page.")]
    assert sorted(linked) == ["page.css", "page.js"]
    for name in linked:
        status, content, _ = request(address, "GET", f"/{name}")
        assert (status, re.findall(rb"https?:|//\w|url\(|@import|import\s*\(", content)) == (200, [])
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert {*" ".join(policy.values()).split()} == {"'none'", "'self'", "data:"}, "and a browser would refuse"
    assert policy["default-src"] == "'none'"


def test_names_of_other_sites_lead_nowhere_and_files_are_not_served_or_read(address: str, studio: Studio) -> None:
    for host in ("localhost:8000", "127.0.0.1", "[::1]:7860", "evil.example:7860"):
        assert request(address, "GET", "/", Host=host)[0] == (400 if "evil" in host else 200)
    assert request(address, "GET", "/?from=a-bookmark")[0] == 200
    for path in ("/etc/passwd", "/../../../etc/passwd", "/studio.py", "//etc/passwd", "/page.html"):
        assert request(address, "GET", path)[0] == 404
    form = make_form(studio)
    assert post(address, form, Content_Type="text/plain")[0] == 400, "what another site can send without asking"
    assert request(address, "OPTIONS", "/generate")[0] == 501, "and if it asks"
    for length in ("-1", str(2**30), "x"):
        assert request(address, "POST", "/generate", Content_Type="application/json", Content_Length=length)[0] == 400
    for body in (b"{", b"[1]", b"\xff"):
        assert request(address, "POST", "/generate", body, Content_Type="application/json")[0] == 400
    with pytest.raises(ToMeError, match="there is no preset"):
        studio.prepare(make_form(studio, preset=__file__))


@pytest.mark.parametrize(("line", "words"), [
    ("--host 203.0.113.7", "--host 203.0.113.7 --port 7860 cannot be used"),
    ("--port 70000", "--port 70000 cannot be used"), ("--prompt a --prompt b", "2 prompts were given"),
    ("--promt x", "'--promt' is not an argument of examples/play; did you mean --prompt?"),
    ("--config balance", "did you mean balanced?"), ("--model nowhere", "does not exist; give a pipeline's folder"),
])  # fmt: skip
def test_bad_arguments_are_one_line(
    line: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("studio.Studio.__init__", lambda *_, **__: pytest.fail("work was started"))
    assert run_command(load_program().make_parser(), line.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("examples/play: error: ")
    assert error.count("\n") == 1
    assert words in error


def test_the_program_serves_until_it_is_interrupted(tmp_path: Path, studio: Studio) -> None:
    """Also where a shell that started it with "&" has it ignore Ctrl-C."""
    command = [sys.executable, str(FOLDER), "--port", "0", "--host", "0.0.0.0", *SMALL, "--language", "zh"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "all_proxy": "socks5://127.0.0.1:9"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_IGN),
    ) as program:  # fmt: skip
        try:
            address = program.stdout.readline().split()[0].removeprefix("http://").rstrip("/")
            status, page, _ = request(address, "GET", "/", Host="any.example")
            assert (status, "生成" in page.decode()) == (200, True)
            threading.Thread(target=post, args=(address, make_form(studio, steps=200)), daemon=True).start()
            time.sleep(3)
            program.send_signal(signal.SIGINT)
            assert program.wait(timeout=10) == 130
        finally:
            program.kill()
        errors = program.stderr.read()
    assert "warning: every machine" in errors
    assert "Traceback" not in errors
    assert errors.endswith("examples/play: interrupted\n")
    assert not list(tmp_path.iterdir())

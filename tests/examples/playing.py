"""Fixtures of the page: a small studio, and its page on a free port."""

from __future__ import annotations

import importlib.util
import io
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

import tiny
from ppdiffusers_tome.tools.console.parsing import Parser
from studio import Studio
from tools.cli.conftest import SMALL

FOLDER = tiny.ROOT / "examples" / "play"


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def encode_image(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def load_program() -> ModuleType:
    """Load what ``python examples/play`` runs, as a module."""
    spec = importlib.util.spec_from_file_location("play_program", FOLDER / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_studio(*arguments: str) -> Studio:
    """Load what the command with these arguments loads."""
    parser, play = Parser(), load_program()
    play.add_arguments(parser)
    settings, prompts = play.parse_arguments(parser.parse_args(arguments))
    return Studio(settings, prompts, are_default_prompts=True)


def make_form(studio: Studio, **fields: Any) -> dict[str, Any]:
    """Fill in the form of the page for a fast image."""
    loaded = studio.plain
    return {
        "prompt": studio.prompt, "preset": "own", "method": "tome", "ratio": 0.5, "cache": 0,
        "seed": 0, "steps": 1, "guidance": loaded.guidance_scale, "height": loaded.size[0],
        "width": loaded.size[1],
        "negative_prompt": "", "has_photo": False, "low": 100, "high": 200, "strength": 1, **fields,
    }  # fmt: skip


@pytest.fixture(scope="session")
def studio() -> Iterator[Studio]:
    studio = make_studio(*SMALL)
    yield studio
    studio.close()


@pytest.fixture(scope="session")
def address(studio: Studio) -> Iterator[str]:
    """Host and port of the page."""
    pytest.importorskip("gradio", reason="the page needs gradio")
    from page import StudioPage
    from server import listen, make_server

    with listen("127.0.0.1", 0) as listening:
        server = make_server(StudioPage(studio, "en").blocks, listening, "127.0.0.1")
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(timeout=30)

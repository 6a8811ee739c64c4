"""What the tests of the page share: the bundled model at a size that takes a second, and its page on a free port."""

from __future__ import annotations

import base64
import gc
import io
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.cli.commands import play
from ppdiffusers_tome.tools.cli.console.parsing import Parser
from ppdiffusers_tome.tools.play.requests import Order, Wanted
from ppdiffusers_tome.tools.play.studio import Studio
from tools.cli.conftest import SMALL

_ADDRESS = re.compile(r"data:image/png;base64,[\w+/=]+")


def png_of(picture: Image.Image, kind: str = "PNG", **how: Any) -> str:
    """A picture as browsers hand one over."""
    file = io.BytesIO()
    picture.save(file, kind, **how)
    return data_of(file.getvalue())


def data_of(content: bytes, kind: str = "image/png") -> str:
    """Any file as browsers hand one over that is called a picture."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def pictures_in(html: str) -> list[np.ndarray]:
    """The pixels of the pictures in a part of the page."""
    found = []
    for address in _ADDRESS.findall(html):
        with Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))) as picture:
            found.append(np.asarray(picture.convert("RGB")))
    return found


def is_held(text: str) -> bool:
    """Whether a list or a dictionary of this process holds a text, as it holds what it was sent."""
    gc.collect()
    holders = [each for each in gc.get_objects() if type(each) in (list, dict)]
    held = (list(each.values()) if isinstance(each, dict) else list(each) for each in holders)
    return any(type(each) is str and each == text for some in held for each in some)


def studio_of(*arguments: str) -> Studio:
    """What draws for the command with these arguments."""
    parser = Parser()
    play.add_arguments(parser)
    settings, prompts = play.chosen(parser.parse_args(arguments))
    return Studio(settings, prompts, default=True)


@pytest.fixture(scope="session")
def studio() -> Studio:
    return studio_of(*SMALL)


@pytest.fixture
def bright_square() -> Image.Image:
    """A photo with edges."""
    pixels = np.zeros((90, 120, 3), np.uint8)
    pixels[30:60, 40:80] = 220
    return Image.fromarray(pixels)


@pytest.fixture
def order(studio: Studio) -> Callable[..., Order]:
    """What somebody may want, other than usual as is said."""

    def make(*, tome: ToMeConfig | None = None, with_map: bool = False, **other: Any) -> Order:
        begin = studio.plain
        usual = {
            "prompt": studio.prompt, "negative_prompt": None, "seed": 0, "height": begin.height, "width": begin.width,
            "steps": begin.settings.steps, "guidance_scale": begin.guidance_scale, "guide": None,
        }  # fmt: skip
        return Order(Wanted(**{**usual, **other}), tome or ToMeConfig(ratio=0.5), with_map)

    return make


@dataclass
class Page:
    """A page that is served, and its room."""

    room: Any
    port: int
    clients: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture(scope="session")
def page(studio: Studio, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    pytest.importorskip("gradio", reason="the page needs gradio")
    from ppdiffusers_tome.tools.play.page import make_pages, opened
    from ppdiffusers_tome.tools.play.serving import application, listen, names_for, prepare_gradio, server_of

    prepare_gradio()
    with opened(studio, ["first", "second"]) as room, listen("127.0.0.1", 0) as listening:
        names = names_for(listening, "127.0.0.1", ["Draw.example.org"])
        server = server_of(application(make_pages(room), None, names))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        until(lambda: server.started)
        yield Page(room, listening.getsockname()[1])
        server.should_exit = True
        thread.join(timeout=30)


def until(happened: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something that another thread does."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)

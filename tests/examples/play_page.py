"""Fixtures of examples/play: a small studio, its page on a free port."""

from __future__ import annotations

import importlib.util
import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from PIL import Image
from server import PageServer
from studio import Studio

import tiny
from tools.cli.conftest import SMALL

FOLDER = tiny.ROOT / "examples" / "play"


def encode_image(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def load_program() -> ModuleType:
    """Load what ``python examples/play`` runs, as a module."""
    spec = importlib.util.spec_from_file_location("play_program", FOLDER / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_studio(*arguments: str) -> Studio:
    """Load what the program with these arguments loads."""
    program = load_program()
    return Studio(*program.parse_arguments(program.make_parser().parse_args(arguments)))


def make_form(studio: Studio, **fields: Any) -> dict[str, Any]:
    """Fill in the form of the page for a fast image."""
    loaded = studio.plain
    return {
        "prompt": studio.prompt, "preset": "own", "method": "tome", "ratio": 0.5, "cache": 0,
        "seed": 0, "steps": 1, "guidance": loaded.guidance_scale, "height": loaded.size[0],
        "width": loaded.size[1],
        "negative_prompt": "", "photo": None, "low": 100, "high": 200, "strength": 1, **fields,
    }  # fmt: skip


@contextmanager
def serve(studio: Studio, language: str) -> Iterator[str]:
    """Serve a studio's page on a free port."""
    with PageServer("127.0.0.1", 0) as server:
        threading.Thread(target=server.serve, args=(studio, language), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="session")
def studio() -> Studio:
    return make_studio(*SMALL)


@pytest.fixture(scope="session")
def address(studio: Studio) -> Iterator[str]:
    """Host and port of the page."""
    with serve(studio, "en") as address:
        yield address


@pytest.fixture(scope="session")
def chinese_address(studio: Studio) -> Iterator[str]:
    with serve(studio, "zh") as address:
        yield address

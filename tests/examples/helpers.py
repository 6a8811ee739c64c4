"""Run the examples in this process, and ask their page."""

import base64
import importlib.util
import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from PIL import Image
from server import PageServer
from studio import Studio

import tiny
from environment import python_path, run_python

EXAMPLES = tiny.ROOT / "examples"


def run_example(name: str, *arguments: object) -> str:
    """Return what a file of ``examples`` prints in a process of its own."""
    environment = dict(PYTHONPATH=python_path(tiny.ROOT), OMP_NUM_THREADS="1")
    done = run_python(str(EXAMPLES / f"{name}.py"), *map(str, arguments), **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def load_module(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def encode_image(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def encode_photo(content: bytes | Image.Image) -> str:
    return base64.b64encode(content if isinstance(content, bytes) else encode_image(content)).decode()


def load_program() -> ModuleType:
    """Load what ``python examples/play`` runs."""
    return load_module("play_program", EXAMPLES / "play" / "__main__.py")


def make_studio(*arguments: str) -> Studio:
    """Load what the program with these arguments loads."""
    program = load_program()
    return Studio(*program.parse_arguments(program.make_parser().parse_args(arguments)))


def make_form(studio: Studio, **fields: Any) -> dict[str, Any]:
    """Fill in the form of the page for a fast image."""
    loaded = studio.plain
    return {
        "prompt": studio.prompt, "preset": "own", "method": "tome", "ratio": 0.5, "cache": 0,
        "seed": 0, "steps": 1, "guidance": loaded.guidance_scale, "height": loaded.size[0], "width": loaded.size[1],
        "negative_prompt": "", "photo": None, "low": 100, "high": 200, "strength": 1, **fields,
    }  # fmt: skip


@contextmanager
def serve(studio: Studio, language: str) -> Iterator[str]:
    """Serve a studio's page on a free port."""
    with PageServer("127.0.0.1", 0) as server:
        threading.Thread(target=server.serve, args=(studio, language), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()

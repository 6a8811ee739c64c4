"""Fixtures of the examples: a page that this process serves."""

from collections.abc import Iterator

import pytest
from studio import Studio

from examples.helpers import make_studio, serve
from tools.cli.conftest import photo as photo
from tools.cli.helpers import SMALL


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

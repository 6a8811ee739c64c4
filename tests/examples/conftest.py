"""Fixtures of the examples: those of the commands, and the page."""

from examples.play_page import address as address
from examples.play_page import chinese_address as chinese_address
from examples.play_page import studio as studio
from tools.cli.conftest import photo as photo

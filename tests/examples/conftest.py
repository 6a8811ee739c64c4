"""Fixtures of the examples: those of the commands, and the page."""

from examples.playing import address as address
from examples.playing import chinese_address as chinese_address
from examples.playing import studio as studio
from tools.cli.conftest import photo as photo

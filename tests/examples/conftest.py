"""Fixtures of the examples: those of the commands."""

from tools.cli.conftest import photo as photo

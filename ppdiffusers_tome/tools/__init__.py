"""The command line, and what it shares with the page in ``examples/play``."""

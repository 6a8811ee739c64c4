"""``python -m ppdiffusers_tome`` is the program ``ppdiffusers-tome``."""

import sys


def program() -> None:
    """The process, which Ctrl-C ends in one line also while the program is imported."""
    try:
        from ppdiffusers_tome.tools import cli

        cli.program()
    except KeyboardInterrupt:
        print("ppdiffusers-tome: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    program()

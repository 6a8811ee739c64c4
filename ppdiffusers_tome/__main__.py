"""The program ``ppdiffusers-tome``, as ``python -m ppdiffusers_tome``."""

import sys


def program() -> None:
    """Run the command line.

    Ctrl-C ends it with one line, also while modules are imported.
    """
    try:
        from ppdiffusers_tome.tools.cli import program as command_line

        command_line.program()
    except KeyboardInterrupt:
        print("ppdiffusers-tome: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    program()

"""The program ``ppdiffusers-tome``, as ``python -m ppdiffusers_tome``."""

import io
import sys


def program() -> None:
    """Run the command line, and end the process.

    Ctrl-C ends it with one line, also while modules are imported.
    """
    try:
        from ppdiffusers_tome.tools.cli.program import main

        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # file names may have letters that a terminal lacks
        sys.exit(main())
    except KeyboardInterrupt:
        print("ppdiffusers-tome: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    program()

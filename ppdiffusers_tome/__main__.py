"""``python -m ppdiffusers_tome`` is the program ``ppdiffusers-tome``."""

import sys

from ppdiffusers_tome.cli import main

if __name__ == "__main__":
    sys.exit(main())

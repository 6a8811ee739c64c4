"""``python -m ppdiffusers_tome`` is the program ``ppdiffusers-tome``."""

from ppdiffusers_tome.tools.cli import program

if __name__ == "__main__":
    program()

"""``ppdiffusers-tome doctor``: what is installed, and whether it can be imported."""

import argparse

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.console.output import log
from ppdiffusers_tome.tools.doctor.environment import describe_environment, find_problems, format_report
from ppdiffusers_tome.tools.doctor.imports import try_imports

HELP = "Say what is installed and whether it can be imported, for a bug report."
NEEDS_MODULES = False  # it says what is missing
EXAMPLES = """It prints versions, devices and memory, and why Paddle or ppdiffusers cannot be imported. It names no
users or machines.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: it takes no arguments of its own."""


def run(args: argparse.Namespace) -> None:
    # At once, as importing takes a while. Not by ``print_line``, whose library may be what is broken.
    print(format_report(describe_environment()), flush=True)
    log("importing Paddle, paddlenlp and ppdiffusers ...")
    imports = {}
    for name, result in try_imports():
        imports[name] = result
        print(format_report({name: result}), flush=True)  # what comes next may end the process
    print("", *find_problems(imports), sep="\n")
    for name, result in imports.items():
        if "error" in result:
            raise UserError(f"{name} cannot be imported: {result['error']}")

"""``python examples/play``: a page that compares images without and with token merging."""

import argparse
import os
import signal
import sys
from dataclasses import replace

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.settings.combine import combine_settings
from ppdiffusers_tome.tools.cli.program import run_command
from ppdiffusers_tome.tools.console.output import import_quietly, print_line, warn
from ppdiffusers_tome.tools.console.parsing import Parser
from ppdiffusers_tome.tools.console.tome_arguments import refuse_conflicts
from ppdiffusers_tome.tools.generation.arguments import add_image_arguments
from ppdiffusers_tome.tools.generation.checks import parse_settings
from ppdiffusers_tome.tools.generation.prompts import check_prompts
from ppdiffusers_tome.tools.generation.settings import ImageSettings

HELP = "Serve a page for the browser: the same image without and with token merging, under one slider."
EXAMPLES = """It prints the address of the page. Prompt, seed, size, steps and guidance are what the page begins with.

  python examples/play --language zh
  python examples/play --model runwayml/stable-diffusion-v1-5 --scheduler ddim
  python examples/play --config outputs/tome.json
"""
HOST, PORT = "127.0.0.1", 7860


def make_parser() -> Parser:
    """Make the parser, which chooses ``run``."""
    parser = Parser(prog="examples/play", description=HELP, epilog=EXAMPLES)
    parser.set_defaults(parser=parser, command=sys.modules[__name__], needs_modules=True, keep_memory=True)
    page = parser.add_argument_group("the page")
    page.add_argument("--host", default=HOST, metavar="ADDRESS",
                      help=f"where to serve it (default: {HOST}, this machine alone); 0.0.0.0: everywhere, without a "
                      "password")
    page.add_argument("--port", type=int, default=PORT, metavar="N", help=f"0: any free one (default: {PORT})")
    page.add_argument("--language", choices=("en", "zh"), default="en", help="default: en")
    page.add_argument("--config", metavar="FILE", help="a JSON file of settings that the page begins with, as of tune")
    add_image_arguments(parser, several=False)
    parser.add_argument("--controlnet", metavar="MODEL", help="a folder or a hub name; in a clone controlnet")
    parser.set_defaults(image=None, controlnet_scale=None)  # these are chosen on the page
    return parser


def run(args: argparse.Namespace) -> None:
    """Serve the page until it is interrupted."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where a shell started this with "&"
    settings, prompt = parse_arguments(args)
    from server import PageServer

    with PageServer(args.host, args.port) as server, import_quietly():
        from studio import Studio

        studio = Studio(settings, prompt)
        if not server.is_local:
            warn("every machine that reaches this one can open the page, without a password; omit --host to prevent it")
        print_line(f"{server.url}  (Ctrl-C ends it)")
        server.serve(studio, args.language)


def parse_arguments(args: argparse.Namespace) -> tuple[ImageSettings, str]:
    """Return what the page begins with, and the one prompt.

    Raises:
        UserError, ToMeValueError: an argument cannot be used.
    """
    settings = parse_settings(args, provides_edges=True)
    if args.config is not None:
        settings = replace(settings, tome=combine_settings(args.config, {}))
        refuse_conflicts(args, [settings.tome])
        if settings.tome.changes_nothing:
            raise UserError(f"--config {args.config} merges nothing and has no cache; omit it, or give other settings")
    (prompt,) = check_prompts(args.prompt, settings.model.default_prompts[:1], most=1)
    return settings, prompt


if __name__ == "__main__":
    code = run_command(make_parser())
    sys.stdout.flush()
    os._exit(code)  # at once, whatever is being generated

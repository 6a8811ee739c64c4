"""``python examples/play``: a page that compares unmerged and merged images."""

import argparse
import ipaddress
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace

from ppdiffusers_tome.errors import ToMeError, UserError
from ppdiffusers_tome.settings.combine import combine_settings
from ppdiffusers_tome.tools.console.output import print_line, quiet_libraries, shorten_warnings, warn
from ppdiffusers_tome.tools.console.parsing import Parser
from ppdiffusers_tome.tools.console.process import prepare_process
from ppdiffusers_tome.tools.generation.arguments import add_image_arguments
from ppdiffusers_tome.tools.generation.image_settings import ImageSettings, parse_settings
from ppdiffusers_tome.tools.generation.prompts import check_prompts
from ppdiffusers_tome.tools.generation.tome_arguments import refuse_conflicts

PROGRAM = "examples/play"
HELP = "Serve a page for the browser: the same image without and with token merging, under one slider."
EXAMPLES = """It prints the address of the page. Prompt, seed, size, steps and guidance are what the page begins with.
It needs gradio: pip install gradio==5.14.0

  python examples/play
  python examples/play --model runwayml/stable-diffusion-v1-5 --controlnet lllyasviel/sd-controlnet-canny
  python examples/play --config outputs/tome.json
"""
HOST, PORT = "127.0.0.1", 7860


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the page until it is interrupted; return the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started this in the background
    parser = Parser(prog=PROGRAM, description=HELP, epilog=EXAMPLES)
    add_arguments(parser)
    try:
        args = parser.parse_args(argv)
        prepare_process(keep_memory=True)
        with shorten_warnings():
            run(args)
        return 0
    except KeyboardInterrupt:
        return 130
    except ToMeError as error:
        print(f"{PROGRAM}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    page = parser.add_argument_group("the page")
    page.add_argument("--host", default=HOST, metavar="ADDRESS",
                      help=f"where to serve it (default: {HOST}, this machine alone); 0.0.0.0: everywhere, without a "
                      "password")
    page.add_argument("--port", type=int, default=PORT, metavar="N", help=f"0: any free one (default: {PORT})")
    page.add_argument("--language", choices=("en", "zh"), default="en", help="default: en")
    page.add_argument("--config", metavar="FILE", help="a JSON file of settings that the page begins with, as of tune")
    add_image_arguments(parser, several=False, photo=False)
    parser.set_defaults(image=None, controlnet_scale=None)  # a photo is uploaded to the page


def run(args: argparse.Namespace) -> None:
    settings, prompts = parse_arguments(args)
    from server import listen

    with (
        listen(args.host, args.port) as listening,
        tempfile.TemporaryDirectory(prefix="ppdiffusers-tome-play-") as uploads,
        quiet_libraries(),
    ):
        from studio import Studio

        studio = Studio(settings, prompts, are_default_prompts=args.prompt is None)
        # Read as Gradio is imported: its uploads, that it must not call anybody, and that there is no proxy, as Gradio
        # fails on those of SOCKS. The model has come through them by now.
        os.environ.update(
            GRADIO_TEMP_DIR=uploads, GRADIO_ANALYTICS_ENABLED="False", HF_HUB_DISABLE_TELEMETRY="1", no_proxy="*"
        )
        from page import StudioPage
        from server import make_server

        server = make_server(StudioPage(studio, args.language).blocks, listening, args.host)
        host, port = listening.getsockname()[:2]
        address = ipaddress.ip_address(host.partition("%")[0])
        if not address.is_loopback:
            warn("every machine that reaches this one can open the page, without a password; omit --host to prevent it")
        shown = "localhost" if address.is_unspecified else f"[{host}]" if address.version == 6 else host
        print_line(f"http://{shown}:{port}/  (Ctrl-C ends it)")
        try:
            server.run(sockets=[listening])
        finally:
            studio.close()


def parse_arguments(args: argparse.Namespace) -> tuple[ImageSettings, list[str]]:
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
    prompts = check_prompts(args.prompt, settings.model.default_prompts[:1], most=1)
    from studio import MAX_SEED, MAX_STEPS

    for name, value, most in (("--steps", settings.steps, MAX_STEPS), ("--seed", settings.seed, MAX_SEED)):
        if value > most:
            raise UserError(f"{name} {value} exceeds what the page accepts; give {most} or less")
    return settings, prompts


if __name__ == "__main__":
    sys.exit(main())

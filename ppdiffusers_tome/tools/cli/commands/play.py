"""``ppdiffusers-tome play``: a page in the browser that draws a picture without and with token merging."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.cli.arguments import add_controlnet_argument, add_image_arguments
from ppdiffusers_tome.tools.demo_model import PROMPTS
from ppdiffusers_tome.tools.generation.class_labels import select_prompts
from ppdiffusers_tome.tools.generation.model_sources import BUNDLED
from ppdiffusers_tome.tools.generation.settings import Settings, check_prompts, parse_settings

if TYPE_CHECKING:
    import socket

HELP = "Serve a page for the browser: the same picture without and with token merging, under one slider."
EXTRA = "play"
EXAMPLES = """prints the address of the page. Prompt, seed, size, steps and guidance are what the page begins with.
It needs the packages of: pip install "ppdiffusers-tome[play]"

examples:
  ppdiffusers-tome play
  ppdiffusers-tome play --model runwayml/stable-diffusion-v1-5 --controlnet lllyasviel/sd-controlnet-canny
  ppdiffusers-tome play --port 0 --language zh --chunked-attention
"""
HOST, PORT = "127.0.0.1", 7860


def add_arguments(parser: argparse.ArgumentParser) -> None:
    page = parser.add_argument_group("the page")
    page.add_argument("--host", default=HOST, metavar="ADDRESS",
                      help=f"where it is served (default: {HOST}, this machine alone); 0.0.0.0: everywhere, without a "
                      "password")
    page.add_argument("--port", type=int, default=PORT, metavar="N", help=f"0: any that is free (default: {PORT})")
    page.add_argument("--allow-host", action="append", default=[], metavar="NAME",
                      help="a name by which a proxy in front of the page shows it, such as draw.example.org; may be "
                      "repeated. On this machine alone the page answers to no other names than these and its own")
    page.add_argument("--language", choices=("en", "zh"), help="default: the browser's")
    add_image_arguments(parser)
    add_controlnet_argument(parser.add_argument_group("ControlNet"))
    # A picture to be guided by is chosen on the page.
    parser.set_defaults(image=None, control_image=None, controlnet_scale=1.0)


def run(args: argparse.Namespace) -> None:
    settings, prompts = chosen(args)
    from ppdiffusers_tome.tools.play.serving import listen, names_for

    with listen(args.host, args.port) as listening:
        from ppdiffusers_tome.tools.cli.console.output import quiet_libraries

        with quiet_libraries():
            names = names_for(listening, args.host, args.allow_host)
            _play(settings, prompts, args.language, listening, names, default=args.prompt is None)


def chosen(args: argparse.Namespace) -> tuple[Settings, list[str]]:
    """What the page begins with, and the one prompt.

    Raises:
        UserError, ToMeValueError: something cannot be used; the message says what and what to do.
    """
    settings = parse_settings(args, None, provides_edges=True)
    if settings.model.bundled and settings.model.labels is None and args.controlnet is None:
        args.controlnet = BUNDLED
        settings = parse_settings(args, None, provides_edges=True)
    prompts = check_prompts(select_prompts(settings.model.labels, args.prompt, PROMPTS[:1]))
    if len(prompts) > 1:
        raise UserError(f"{len(prompts)} prompts were given, and the page begins with one; give one --prompt")
    from ppdiffusers_tome.tools.play.requests import MOST_SEED, MOST_STEPS

    for name, value, most in (("--steps", settings.steps, MOST_STEPS), ("--seed", settings.seed, MOST_SEED)):
        if value > most:
            raise UserError(f"{name} {value} is more than the page draws with; give {most} or less")
    return settings, prompts


def _play(
    settings: Settings, prompts: list[str], language: str | None, listening: socket.socket,
    names: frozenset[str] | None, *, default: bool,
) -> None:  # fmt: skip
    from ppdiffusers_tome.tools.play.serving import prepare_gradio

    prepare_gradio()
    from ppdiffusers_tome.tools.play.page import make_pages, opened
    from ppdiffusers_tome.tools.play.serving import application, server_of, tell_where
    from ppdiffusers_tome.tools.play.studio import Studio

    studio = Studio(settings, prompts, default=default)
    examples = PROMPTS if settings.model.bundled and studio.plain.labels is None else ()
    with opened(studio, examples) as room:
        server = server_of(application(make_pages(room), language, names))
        tell_where(listening)
        server.run(sockets=[listening])

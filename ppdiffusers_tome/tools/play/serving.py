"""The server: on this machine alone unless told otherwise, and nothing but the page.

It serves no file but gradio's own parts of a page, takes no uploads, calls nobody, and lets pages of other sites do
nothing here. What gradio could do besides is refused before gradio hears of it.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.console.output import print_line, warn
from ppdiffusers_tome.tools.play.photos import MOST_BYTES
from ppdiffusers_tome.tools.play.words import LANGUAGES, language_of
from ppdiffusers_tome.tools.play.words.english import ENGLISH

Scope = MutableMapping[str, Any]
Asgi = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]

# What a browser needs of a page, and gradio's client; of gradio's other addresses some read files or call others.
_NEEDED = re.compile(
    rf"/({'|'.join(LANGUAGES)})/("
    r"config|theme\.css|manifest\.json|favicon\.ico|(assets|static)/[\w./-]+"
    r"|gradio_api/(info|startup-events|queue/(join|data)|heartbeat/[\w-]+|cancel|reset|app_id)"
    r")?"
)
_FIRST, _ICON = "/", "/favicon.ico"
_MOST_BODY = 2 * MOST_BYTES  # of a picture as text
_HEADERS = (
    # Nothing from other hosts: gradio's page asks for a script of one, which it can do without.
    ("content-security-policy", "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
     "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; form-action 'none'; "
     "base-uri 'self'; frame-ancestors 'self'"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
)  # fmt: skip


def prepare_gradio() -> None:
    """Have gradio call nobody; before it is imported."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"


def listen(host: str, port: int) -> socket.socket:
    """A socket to serve on; port 0 is any that is free.

    Raises:
        UserError: there is no such address here, or the port is taken or not allowed.
    """
    if not 0 <= port < 2**16:
        raise UserError(f"--port {port} must be from 0 to 65535; 7860 is usual, and 0 is any that is free")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UserError(f"--host {host} is not an address of this machine ({error}); leave it out") from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen()
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"--port {port} is taken by another program; give another, or 0 for any that is free"
            ) from error
        if error.errno == errno.EACCES:
            raise UserError(f"--port {port} is not allowed to you; give one above 1023") from error
        raise UserError(f"--host {host} is not an address of this machine ({error.strerror}); leave it out") from error
    return made


def tell_where(made: socket.socket) -> None:
    """Print the page's address; warn where other machines reach it."""
    host, port = made.getsockname()[:2]
    address = ipaddress.ip_address(host.partition("%")[0])
    if not address.is_loopback:
        whom = "every machine that reaches this one" if address.is_unspecified else "other machines"
        warn(f"{whom} can open this page and draw with it, without a password; leave out --host for this one alone")
    shown = "localhost" if address.is_unspecified else f"[{host}]" if address.version == 6 else host
    print_line(f"http://{shown}:{port}/  (Ctrl-C ends it)")
    sys.stdout.flush()  # somebody may read it through a pipe


def application(pages: MutableMapping[str, Any], language: str | None) -> Asgi:
    """The pages as a program that a server runs.

    Args:
        pages: gradio's blocks by the code of their language.
        language: which to begin with; None for the browser's own.
    """
    import gradio
    from fastapi import FastAPI
    from fastapi.responses import RedirectResponse

    async def first(request: Any) -> Any:
        return RedirectResponse(f"{language or language_of(request.headers.get('accept-language', ''))}/")

    async def icon(request: Any) -> Any:
        return RedirectResponse(f"{ENGLISH.code}{_ICON}")

    app = FastAPI(openapi_url=None)
    app.add_route(_FIRST, first)
    app.add_route(_ICON, icon)
    for code, blocks in pages.items():
        gradio.mount_gradio_app(app, blocks, f"/{code}", show_api=False, show_error=False, ssr_mode=False)
    return _Guarded(app)


class _Guarded:
    """Refuses what the page does not need, and adds headers to all answers."""

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in _HEADERS]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        refused = _refused(scope)
        if refused is None:
            await self._app(scope, receive, with_headers)
            return
        status, said = refused
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await with_headers({"type": "http.response.start", "status": status, "headers": headers})
        await with_headers({"type": "http.response.body", "body": f"{said}\n".encode()})


def _refused(scope: Scope) -> tuple[int, str] | None:
    """The status and a sentence where a request is refused."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    path = scope["path"]
    page = path in (_FIRST, *(f"/{code}/" for code in LANGUAGES))
    if path not in (_FIRST, _ICON) and (not _NEEDED.fullmatch(path) or ".." in path):
        return 404, "there is nothing here"
    # Browsers say so of their own accord, and no page can make them say otherwise. A link here is no harm.
    if headers.get("sec-fetch-site") == "cross-site" and not page:
        return 403, "pages of other sites cannot use this one"
    if scope["method"] not in ("GET", "HEAD", "POST"):
        return 405, "this is not taken here"
    if scope["method"] == "POST":
        length = headers.get("content-length", "")
        if not length.isdecimal() or len(length) > 12:
            return 411, "say how long it is"
        if int(length) > _MOST_BODY:
            return 413, f"more than {_MOST_BODY // 2**20} MiB"
    return None


def server_of(app: Asgi) -> Any:
    """What serves a program on a socket until Ctrl-C: a ``uvicorn.Server``."""
    import uvicorn

    config = uvicorn.Config(
        app, log_level="error", access_log=False, ws="none", server_header=False, timeout_graceful_shutdown=1,
        proxy_headers=False,
    )  # fmt: skip
    return uvicorn.Server(config)

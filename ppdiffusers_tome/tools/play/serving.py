"""The server: on this machine alone unless told otherwise, and nothing but the page.

It serves no file but gradio's own parts of a page, takes no uploads, calls nobody, and lets pages of other sites do
nothing here. What gradio could do besides is refused before gradio hears of it.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import re
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.cli.console.output import print_line, warn
from ppdiffusers_tome.tools.play.i18n import LANGUAGES, language_of
from ppdiffusers_tome.tools.play.i18n.english import ENGLISH
from ppdiffusers_tome.tools.play.photos import MOST_BYTES

Scope = MutableMapping[str, Any]
Send = Callable[[Any], Awaitable[None]]
Asgi = Callable[[Scope, Callable[[], Awaitable[Any]], Send], Awaitable[None]]

# What a browser needs of a page, and gradio's client; of gradio's other addresses some read files or call others.
_NEEDED = re.compile(
    rf"/({'|'.join(LANGUAGES)})/("
    r"config|theme\.css|manifest\.json|favicon\.ico|(assets|static)/[\w./-]+"
    # run/ is for what passes the line; gradio refuses it for the rest.
    r"|gradio_api/(info|startup-events|queue/(join|data)|run/(predict|photo)|heartbeat/[\w-]+|cancel|reset|app_id)"
    r")?"
)
_FIRST, _ICON = "/", "/favicon.ico"
_PAGES = tuple(f"/{code}/" for code in LANGUAGES)
# gradio guesses the page's address from the request, wrongly behind most proxies; the browser knows it.
_ROOT = b'<script>window.gradio_config.root = location.origin + location.pathname.replace(/[/]+$/, "")</script>'
_MOST_BODY, _MOST_QUEUED = 2 * MOST_BYTES, 2**20  # of a picture as text; of the rest, which gradio keeps for good
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


def names_for(made: socket.socket, host: str, others: Iterable[str]) -> frozenset[str] | None:
    """The names that browsers may know the page by; None for any. Addresses and ``localhost`` need no naming.

    A web site can lead its own name to this machine's address, and its pages would be this one's to the browser. So
    where only this machine may open the page, it answers to no other name. Where others may, they use names of which
    nothing is known here.

    Args:
        made: from ``listen``.
        host: what was asked to listen on.
        others: names that a proxy in front of the page goes by.
    """
    names = frozenset(name.lower() for name in others)
    address = ipaddress.ip_address(made.getsockname()[0].partition("%")[0])
    return names | {host.lower()} if names or address.is_loopback else None


def application(pages: MutableMapping[str, Any], language: str | None, names: frozenset[str] | None) -> Asgi:
    """The pages as a program that a server runs.

    Args:
        pages: gradio's blocks by the code of their language.
        language: which to begin with; None for the browser's own.
        names: from ``names_for``.
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
    return _Guarded(app, names)


class _Guarded:
    """Refuses what the page does not need, adds headers to all answers, and tells pages where they are."""

    def __init__(self, app: Asgi, names: frozenset[str] | None) -> None:
        self._app, self._names = app, names

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

        refused = _refused(scope, self._names)
        if refused is None:
            await self._passed_on(scope, receive, with_headers)
            return
        status, said = refused
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await with_headers({"type": "http.response.start", "status": status, "headers": headers})
        await with_headers({"type": "http.response.body", "body": f"{said}\n".encode()})

    async def _passed_on(self, scope: Scope, receive: Any, send: Send) -> None:
        try:
            if scope["path"] in _PAGES and scope["method"] == "GET":
                plain = [each for each in scope["headers"] if each[0] != b"accept-encoding"]  # not to be compressed
                await self._app({**scope, "headers": plain}, receive, _telling_where(send))
            else:
                await self._app(scope, receive, send)
        except asyncio.CancelledError:  # the server ends, and an open page's answers would go on for ever
            with suppress(Exception):
                await send({"type": "http.response.body", "body": b""})


def _telling_where(send: Send) -> Send:
    """Sends a page with ``_ROOT`` at the end of its head."""
    begun: MutableMapping[str, Any] = {}
    content = b""

    async def send_told(message: Any) -> None:
        nonlocal content
        if message["type"] == "http.response.start":
            begun.update(message)
            return
        content += message.get("body", b"")
        if message.get("more_body"):
            return
        told = content.replace(b"</head>", _ROOT + b"</head>", 1)
        headers = [(name, value) for name, value in begun["headers"] if name.lower() != b"content-length"]
        await send({**begun, "headers": [*headers, (b"content-length", str(len(told)).encode())]})
        await send({"type": "http.response.body", "body": told})

    return send_told


def _refused(scope: Scope, names: frozenset[str] | None) -> tuple[int, str] | None:
    """The status and a sentence where a request is refused."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    host = _host_in(headers.get("host", ""))
    if names is not None and host not in names and not _is_address(host):
        return 403, f"this page does not go by the name {host[:80]!r}; if it is to, start it with --allow-host"
    path = scope["path"]
    page = path in (_FIRST, *_PAGES)
    if path not in (_FIRST, _ICON) and (not _NEEDED.fullmatch(path) or ".." in path):
        return 404, "there is nothing here"
    if not page and _is_of_another_site(headers, names):  # a link to the page is no harm
        return 403, "pages of other sites cannot use this one; behind a proxy, start it with --allow-host and its name"
    if scope["method"] not in ("GET", "HEAD", "POST"):
        return 405, "this is not taken here"
    if scope["method"] == "POST":
        length = headers.get("content-length", "")
        most = _MOST_BODY if "/run/" in path else _MOST_QUEUED
        # A body in chunks has any length, whatever else is said of it.
        if not length.isdecimal() or len(length) > 12 or "transfer-encoding" in headers:
            return 411, "say how long it is"
        if int(length) > most:
            return 413, f"more than {most // 2**20} MiB"
    return None


def _is_of_another_site(headers: Mapping[str, str], names: frozenset[str] | None) -> bool:
    """Whether a page of another site asks; what browsers say of that, no page can make them say otherwise."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site not in ("same-origin", "none")
    if origin is None:
        return False
    # Without https browsers say less, of other machines than their own. A proxy may have changed the name.
    theirs, first = origin.partition("://")[2], headers.get("x-forwarded-host", "").partition(",")[0].strip()
    return theirs not in {headers.get("host"), first} - {""} and _host_in(theirs) not in (names or ())


def _host_in(given: str) -> str:
    """A host without its port; "" where it is none."""
    try:
        return (urlsplit(f"//{given}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    """Whether a host is an address, or this machine's own name for itself: nobody else can lead these anywhere."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def server_of(app: Asgi) -> Any:
    """What serves a program on a socket until Ctrl-C: a ``uvicorn.Server``."""
    import uvicorn

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for task in list(self.server_state.tasks):
                task.cancel()  # or it waits for each open page, and tells of each at length
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app, log_level="error", access_log=False, ws="none", server_header=False, timeout_graceful_shutdown=1,
        proxy_headers=False,
    )  # fmt: skip
    return Server(config)

"""The server of the page, and what it refuses to serve."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.play.requests import MAX_BYTES

if TYPE_CHECKING:
    from gradio import Blocks

# What a browser needs; some other addresses of Gradio's read files, call other hosts, or pass the queue.
_NEEDED = re.compile(
    r"/(config|theme\.css|manifest\.json|favicon\.ico|(assets|static)/[\w./-]+"
    r"|gradio_api/(info|startup-events|queue/(join|data)|heartbeat/\w+|cancel|reset|app_id|upload(_progress)?))?"
)
_MAX_UPLOAD, _MAX_REQUEST = MAX_BYTES + 2**16, 2**20  # bytes; Gradio's queue keeps all requests but uploads
_HEADERS = {
    # Nothing from other hosts: Gradio's page asks for a script that it can do without.
    "content-security-policy": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; form-action 'none'; "
    "base-uri 'self'; frame-ancestors 'self'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def listen(host: str, port: int) -> socket.socket:
    """Open a socket to serve on; port 0 is any free one.

    Raises:
        UserError: this machine has no such address, or the port cannot be used.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        return socket.create_server((address[0], port), family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(
            f"--host {host} --port {port} cannot be used ({error}); give another port from 1024 to 65535, or 0 for any "
            "free one, and omit --host for this machine alone"
        ) from error


def choose_host_names(listening: socket.socket, host: str, extra: Iterable[str]) -> frozenset[str] | None:
    """Return the names that the page answers to; None for any.

    Addresses and ``localhost`` are always accepted. Any site can point its own name at 127.0.0.1, and its pages would
    then count as this one (DNS rebinding).

    Args:
        listening: from ``listen``.
        host: what the user asked to listen on.
        extra: names of a proxy.
    """
    names = frozenset(name.lower() for name in extra)
    address = ipaddress.ip_address(listening.getsockname()[0].partition("%")[0])
    return names | {host.lower()} if names or address.is_loopback else None


def make_server(blocks: Blocks, names: frozenset[str] | None) -> Any:
    """Return a ``uvicorn.Server`` of the page; ``names`` are from ``choose_host_names``."""
    import uvicorn
    from fastapi import FastAPI
    from gradio import mount_gradio_app

    app = mount_gradio_app(
        FastAPI(openapi_url=None), blocks, "/", show_api=False, show_error=False, ssr_mode=False,
        max_file_size=MAX_BYTES, root_path=os.environ.get("GRADIO_ROOT_PATH"),
    )  # fmt: skip
    return uvicorn.Server(uvicorn.Config(
        _Guard(app, names), log_level="critical", ws="none", server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=1,
    ))  # fmt: skip


class _Guard:
    """Refuses requests that the page does not need, and adds headers to all responses."""

    def __init__(self, app: Any, names: frozenset[str] | None) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.datastructures import Headers, MutableHeaders
        from starlette.responses import PlainTextResponse

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        app = self._app
        if scope["type"] == "http" and (refusal := self._refuse(scope["method"], scope["path"], Headers(scope=scope))):
            app = PlainTextResponse(refusal[1], refusal[0])
        await app(scope, receive, send_with_headers)

    def _refuse(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Return the status and the reason of a refusal, or None."""
        host = _host_name(headers.get("host", ""))
        if self._names is not None and host not in self._names and not _is_address(host):
            return 403, f"The page does not answer to the name {host[:80]!r}; start it with --allow-host and that name."
        if not _NEEDED.fullmatch(path) or ".." in path:
            return 404, "Not found."
        # Browsers name the page that sends a request, unless it is a link or an image. A proxy may change the host.
        origin = headers.get("origin", "").partition("://")[2] or headers.get("origin")
        forwarded = headers.get("x-forwarded-host", "").partition(",")[0].strip()
        if origin and origin not in (headers.get("host"), forwarded) and _host_name(origin) not in (self._names or ()):
            return 403, "Pages of other sites cannot use this one; behind a proxy, start it with --allow-host."
        if method not in ("GET", "HEAD", "POST"):
            return 405, "This method is not supported."
        length, most = headers.get("content-length", ""), _MAX_UPLOAD if path.endswith("/upload") else _MAX_REQUEST
        # A request in chunks has any length, whatever its headers say.
        if method == "POST" and (not length.isdecimal() or "transfer-encoding" in headers):
            return 411, "The length of the request is missing."
        if method == "POST" and (len(length) > 12 or int(length) > most):
            return 413, f"The request exceeds {most // 2**20} MiB."
        return None


def _host_name(host: str) -> str:
    """Return a host without its port; "" where it is invalid."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    """Return whether nobody can point a host elsewhere."""
    try:
        return host == "localhost" or host.endswith(".localhost") or bool(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return False

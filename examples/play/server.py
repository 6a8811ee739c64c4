"""The server of the page."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Any

from ppdiffusers_tome.errors import UserError
from studio import MAX_BYTES

if TYPE_CHECKING:
    from gradio import Blocks


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


def make_server(page: Blocks, listening: socket.socket, host: str) -> Any:
    """Return a ``uvicorn.Server`` of the page.

    A page for this machine alone answers to no other names than its own: any site can point its name at 127.0.0.1, and
    its pages would then count as this one (DNS rebinding).
    """
    import uvicorn
    from fastapi import FastAPI
    from gradio import mount_gradio_app
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    app = FastAPI(openapi_url=None)
    mount_gradio_app(app, page, "/", show_api=False, show_error=False, ssr_mode=False, max_file_size=MAX_BYTES)
    address = listening.getsockname()[0]
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        names = ["localhost", "127.0.0.1", "[", address, host]  # "[" is what the middleware reads of [::1]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[name.lower() for name in names])
    return uvicorn.Server(uvicorn.Config(app, log_level="critical", ws="none", timeout_graceful_shutdown=1))

"""The server of the page."""

from __future__ import annotations

import json
import re
import select
import socket
import sys
import traceback
from functools import partial
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING, Any

from page import render_page, render_pair, render_unmerged
from studio import MAX_BYTES, Progress, RefusedError, Studio
from words import translate

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.measure.memory import explain_shortage

if TYPE_CHECKING:
    from ppdiffusers_tome.tools.generation.loaded_pipeline import GeneratedImage

_MAX_BODY = MAX_BYTES * 4 // 3 + 2**16  # a photo in base64, and the other fields
_HEADERS = {
    "Cache-Control": "no-store",
    # With it a browser loads nothing from elsewhere, whatever the page holds.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
}  # fmt: skip


class PageServer(ThreadingTCPServer):
    """The server of a studio's page; port 0 is any free one.

    Raises:
        UserError: this machine has no such address, or the port cannot be used.
    """

    allow_reuse_address = daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        try:
            self.address_family, _, _, _, found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
            super().__init__((found[0], port), _Handler)
        except (OSError, OverflowError, UnicodeError) as error:
            raise UserError(
                f"--host {host} --port {port} cannot be used ({error}); give another port from 1024 to 65535, or 0 for "
                "any free one, and omit --host for this machine alone"
            ) from error
        address = ip_address(str(self.server_address[0]).partition("%")[0])
        shown = "localhost" if address.is_unspecified else f"[{address}]" if address.version == 6 else str(address)
        self.url, self.is_local = f"http://{shown}:{self.server_address[1]}/", address.is_loopback
        self.names = ("localhost", "127.0.0.1", "[::1]", shown, host.lower())

    def serve(self, studio: Studio, language: str) -> None:
        """Serve the page of a studio for ever."""
        self.studio, self.words = studio, partial(translate, language)
        self.files = {"/": ("text/html", render_page(studio, language))}
        for name, kind in (("page.js", "text/javascript"), ("page.css", "text/css")):
            self.files[f"/{name}"] = kind, Path(__file__).with_name(name).read_text("utf-8")
        self.serve_forever()

    def handle_error(self, *args: Any) -> None:
        """Say nothing of connections that end."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(*args)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = 60  # seconds in which nothing can be read or written

    def parse_request(self) -> bool:
        """Refuse names of other sites on a page for this machine.

        Any site can point its name at 127.0.0.1, and its pages would then count as this one (DNS rebinding).
        """
        if not super().parse_request():
            return False
        name = re.sub(r":\d+$", "", self.headers.get("Host", "").lower())
        if self.server.is_local and name not in self.server.names:
            self.send_error(400)
            return False
        return True

    def do_GET(self) -> None:
        """Send a file of the page."""
        kind, text = self.server.files.get(self.path.partition("?")[0], ("", ""))
        if not text:
            return self.send_error(404)
        self._begin(f"{kind}; charset=utf-8")
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        """Generate, and send a line of JSON for all that happens.

        A page of another site cannot send JSON without asking first, and that is refused.
        """
        if (self.path, self.headers.get_content_type()) != ("/generate", "application/json"):
            return self.send_error(400)
        try:
            length = int(self.headers.get("Content-Length", 0))
            if not 0 <= length <= _MAX_BODY:
                return self.send_error(400)
            form = dict(json.loads(self.rfile.read(length)))
        except (ValueError, TypeError):
            return self.send_error(400)
        self._begin("application/x-ndjson")
        words = self.server.words
        try:
            request = self.server.studio.prepare(form)
            self._send(notice=" ".join(words(key, **values) for key, values in request.warnings))
            pair = self.server.studio.compare(request, self._report, self._show_unmerged)
            self._send(html=render_pair(words, pair), is_last=True)
        except (ConnectionError, TimeoutError):  # the page has left
            return
        except UserError as error:  # of --compile, in English alone
            self._send(notice=str(error), is_error=True, is_last=True)
        except Exception as error:
            reason, values = "broken", {}
            if isinstance(error, RefusedError):
                reason, values = error.reason, error.values
            elif explain_shortage(error) is not None:
                reason = "out_of_memory"
            else:
                traceback.print_exc()
            self._send(notice=words(reason, **values), is_error=True, is_last=True)

    def _report(self, progress: Progress | None) -> None:
        if progress is None:
            return self._send()
        words, (stage, done, calls) = self.server.words, progress
        self._send(progress=words("progress", stage=words(stage), done=done, calls=calls), share=done / calls)

    def _show_unmerged(self, generated: GeneratedImage) -> None:
        self._send(html=render_unmerged(self.server.words, generated.image))

    def _begin(self, kind: str) -> None:
        self.send_response(200)
        for name, value in {**_HEADERS, "Content-Type": kind}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, **event: Any) -> None:
        """Send what the page is to show, if it is still there."""
        if select.select([self.connection], [], [], 0)[0]:  # a page sends nothing more: this is its end
            raise ConnectionAbortedError
        if event:
            self.wfile.write(json.dumps(event).encode() + b"\n")

    def log_message(self, *_: Any) -> None:
        """Print nothing of each request."""

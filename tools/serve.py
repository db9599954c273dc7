"""Serve the built book on localhost, as its public home would.

    python tools/serve.py [PORT]

A page that does not exist answers with ``404.html``. The folder that the book has at
its public home is understood, too: ``/transformers-side-by-side/book/index.html``.
"""

import functools
import http.server
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pages

HOME = urlsplit(pages.config()["html"]["baseurl"]).path


class Book(http.server.SimpleHTTPRequestHandler):
    """Files of a folder; what is not there gets the book's own page for that."""

    def translate_path(self, path):
        return super().translate_path(f"/{path.removeprefix(HOME)}")

    def send_error(self, code, message=None, explain=None):
        page = Path(self.directory) / "404.html"
        if code != http.HTTPStatus.NOT_FOUND or not page.exists():
            super().send_error(code, message, explain)
            return
        content = page.read_bytes()
        self.send_response(code)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


class Silent(Book):
    """The same, without a line for each request."""

    def log_message(self, *_):
        """Says nothing."""


def server(folder, port=0, handler=Book):
    """A server of a folder on localhost; port 0 takes one that is free."""
    answer = functools.partial(handler, directory=folder)
    return http.server.ThreadingHTTPServer(("localhost", port), answer)


def main(arguments):
    port = arguments[0] if arguments else "8000"
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise SystemExit(f"expected a port from 1 to 65535, got {port!r}")
    try:
        with server(pages.ROOT / "_build" / "html", int(port)) as serving:
            print(f"http://localhost:{port}", flush=True)
            serving.serve_forever()
    except OSError as error:
        reason = f"cannot serve on port {port}: {error.strerror}"
        raise SystemExit(f"{reason}; name another: make serve PORT=8001") from None
    except KeyboardInterrupt:
        print("stopped")


if __name__ == "__main__":
    main(sys.argv[1:])

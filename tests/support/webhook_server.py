"""A webhook on loopback."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from typing import Any


class Server:
    """A webhook on loopback that answers as its script says.

    Args:
        script: Status, or what is done with the connection, of each request; the last
            one for all that follow.
    """

    def __init__(self, *script: Any) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                n = len(server.bodies)
                length = int(self.headers["Content-Length"])
                server.bodies.append(json.loads(self.rfile.read(length)))
                server.headers.append(self.headers)
                step = script[min(n, len(script) - 1)]
                if callable(step):
                    with contextlib.suppress(OSError):
                        step(self)
                    self.close_connection = True
                    return
                self.send_response(step)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.host = f"127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

"""A web server that takes what a notification block of Prefect's posts: `{"text": ...}`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@contextmanager
def running_webhook() -> Iterator[tuple[str, list[str]]]:
    """While the block lasts: its address, and the texts that were posted there so far."""
    texts: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            texts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *_: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/secret-hook", texts
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

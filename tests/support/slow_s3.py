"""A door in front of an S3 server that can be made slow, or to turn people away as a busy store does (503 SlowDown)."""

import http.client
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SLOW_DOWN = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your rate.</Message></Error>'


class Door:
    """How it treats those who come: changed by the test while requests go through."""

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream).netloc
        self.refuse = 0.0
        """The part of requests that is turned away."""
        self.delay_s = 0.0
        self.lose_answers = 0.0
        """The part of requests that are done, and whose answer is lost."""
        self.endpoint = ""
        self.turned_away = 0
        self.lost = 0
        self._random = random.Random(4)

    def chance(self, part: float) -> bool:
        return self._random.random() < part


@contextmanager
def throttled(upstream: str) -> Iterator[Door]:
    door = Door(upstream)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            time.sleep(door.delay_s)
            if door.chance(door.refuse):
                door.turned_away += 1
                self._answer(503, [("Content-Type", "application/xml")], SLOW_DOWN)
                return
            # The request is signed with its headers as they are, the host among them.
            connection = http.client.HTTPConnection(door.upstream, timeout=30)
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            if door.chance(door.lose_answers):
                door.lost += 1
                self.close_connection = True
                return
            self._answer(answer.status, answer.getheaders(), content)

        def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            self.send_response_only(status)
            length = str(len(content))
            for name, value in headers:
                if name.lower() == "content-length":
                    length = value
                elif name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    door.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield door
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

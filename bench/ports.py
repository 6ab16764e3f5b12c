"""Waiting for a listener, and ports that are free now."""

import socket
import time


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


def wait_for_port(port: int, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)

"""Chooses listening ports, and names the setting to change if a port is taken or the address is not this machine's.

Clients are not authenticated yet, so other machines may connect only if the operator allows it.
"""

import contextlib
import errno
import ipaddress
import socket
import time

from lakestream.process.clock import SystemClock
from lakestream.settings import Settings, SettingsError

PATIENCE_S = 2.0
"""How long to wait for a taken port: children of a supervisor that was just killed may still hold it."""

Listener = tuple[str, str, int]
"""The flag that sets the port, the host to bind, and the first port (0: any)."""


def check_exposure(settings: Settings) -> None:
    """Raises SettingsError if another machine could connect, and `allow_unauthenticated` does not say so."""
    hosts = {"kafka_host": settings.kafka_host, "http_host": settings.http_host}
    open_to_all = [f"{name} = {host!r}" for name, host in hosts.items() if not is_loopback(host)]
    if open_to_all and not settings.allow_unauthenticated:
        raise SettingsError(
            f"{' and '.join(open_to_all)}: other machines could connect, and Lakestream asks no client for a password: "
            "every client may read, write and delete everything. Bind to 127.0.0.1, or start with "
            "--allow-unauthenticated if only machines that you trust reach these ports"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. Of names only localhost counts."""
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def choose_ports(*listeners: Listener, count: int) -> list[list[int]]:
    """For each listener `count` free, distinct ports; from port P on: P, P+1, ..."""
    chosen: list[list[int]] = []
    with contextlib.ExitStack() as held:
        for flag, host, first in listeners:
            if first and first + count - 1 > 65535:
                raise SettingsError(f"{flag} {first}: {count} brokers need the ports up to {first + count - 1}")
            ports = [first + i if first else 0 for i in range(count)]
            bound = [held.enter_context(_bind(flag, host, port)) for port in ports]
            chosen.append([sock.getsockname()[1] for sock in bound])
    return chosen


def address(host: str, port: int) -> str:
    """HOST:PORT, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(text: str, default_port: int) -> tuple[str, int]:
    """The host and port of HOST:PORT, HOST, [V6]:PORT. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default_port)
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"expected HOST:PORT, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _bind(flag: str, host: str, port: int) -> socket.socket:
    clock = SystemClock()
    deadline = clock.monotonic() + PATIENCE_S
    while True:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            return sock
        except OSError as error:
            sock.close()
            where = f"cannot listen on {address(host, port)}: {error.strerror}"
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                # The address does not belong to this machine, so no other port helps.
                raise SettingsError(f"{where}; choose another with {flag.replace('port', 'host')}") from None
            if clock.monotonic() >= deadline:
                raise SettingsError(f"{where}; choose another with {flag} (0: any free one)") from None
        time.sleep(0.05)

"""The limits of the HTTP port for one client."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits of one listener."""

    hosts: frozenset[str] = frozenset()
    """Names besides localhost and the addresses of the listener that a request may call this broker by.

    Pages of these hosts may also send requests. `*` stands for every name, `*.x.org` for those below x.org.
    """
    connections: int = 1000
    connections_per_address: int = 250
    body_bytes: int = 128 << 20
    """Bodies of all requests together."""
    head_s: float = 10.0
    """How long a request's headers may take."""
    body_s: float = 60.0
    """How long a body may take, besides the time that it needs at `body_bytes_per_s`."""
    body_bytes_per_s: int = 64 << 10
    spare_connections: int = 64
    """Connections beyond the limits, which get health answers and nothing else."""
    spare_per_address: int = 8
    spare_s: float = 5.0
    """How long such a connection may take for its one request."""

"""Decides which connections of the HTTP port are served, and which get health answers only.

A client that takes too many connections must not make a broker look dead: beyond the limits a probe is answered on a
spare connection, which lasts for one short request. When all spare connections are taken, the oldest one is closed.
"""

import ipaddress
from collections import Counter
from collections.abc import Callable, Hashable

from lakestream.protocol.http.limits import HttpLimits


class Crowd:
    """The open connections of one listener, by the address of their clients."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._served: dict[Hashable, str] = {}
        self._spare: dict[Hashable, tuple[str, Callable[[], None]]] = {}
        self._by_address: Counter[str] = Counter()
        self.refused = 0
        """Connections that found no place at all, or had to make room."""

    @property
    def size(self) -> int:
        return len(self._served) + len(self._spare)

    def enter(self, connection: Hashable, address: str, leave: Callable[[], None]) -> bool:
        """Whether a new connection is served; if not, it takes a spare place, and an older one may be closed for it."""
        network = network_of(address)
        limits = self._limits
        if len(self._served) < limits.connections and self._by_address[network] < limits.connections_per_address:
            self._served[connection] = network
            self._by_address[network] += 1
            return True
        own = [one for one, (taken_by, _) in self._spare.items() if taken_by == network]
        if len(own) >= limits.spare_per_address:
            self._make_room(own[0])
        elif len(self._spare) >= limits.spare_connections:
            self._make_room(next(iter(self._spare)))
        self._spare[connection] = network, leave
        return False

    def _make_room(self, oldest: Hashable) -> None:
        """Closes the oldest spare connection: a probe asks at once, so an old one is not a probe."""
        self.refused += 1
        self._spare.pop(oldest)[1]()

    def leave(self, connection: Hashable) -> None:
        self._spare.pop(connection, None)
        network = self._served.pop(connection, None)
        if network is not None:
            self._by_address[network] -= 1
            if not self._by_address[network]:
                del self._by_address[network]


def network_of(address: str) -> str:
    """The network that counts as one client: an address, or a /64 of IPv6, which one client usually has to itself."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))

"""HTTP as bytes on a socket, for tests of what proper clients never send."""

import asyncio
from dataclasses import dataclass


@dataclass
class Wire:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, address: tuple[str, int]) -> "Wire":
        return cls(*await asyncio.open_connection(*address))

    def send(self, text: str) -> None:
        self.writer.write(text.replace("\n", "\r\n").encode("latin-1"))

    def ask(self, path: str, host: str = "localhost", method: str = "GET", **headers: str) -> None:
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\n".join([f"{method} {path} HTTP/1.1", f"host: {host}", *lines, "", ""]))

    async def status(self) -> int:
        """Of the next answer, whose body is read away; 0 if the connection ends instead."""
        head = await asyncio.wait_for(self._head(), 10)
        if not head:
            return 0
        length = next((int(line[15:]) for line in head.lower().splitlines() if line.startswith(b"content-length:")), 0)
        await self.reader.readexactly(length)
        return int(head.split()[1])

    async def _head(self) -> bytes:
        try:
            return await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    async def ended(self) -> bool:
        """Whether the server ends the connection, within seconds; what it still says is read away."""
        try:
            while await asyncio.wait_for(self.reader.read(65536), 10):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        self.writer.close()

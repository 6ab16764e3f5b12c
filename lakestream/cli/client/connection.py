"""One connection to a Kafka broker: sends requests and reads the answers, each with a deadline."""

import asyncio
import contextlib
import struct
from typing import Any, Final

from lakestream.errors import LakestreamError
from lakestream.process.ports import address
from lakestream.protocol.kafka.messages.metadata import ApiVersionsRequest
from lakestream.protocol.kafka.wire import codec, framing
from lakestream.protocol.kafka.wire.apis import APIS, Api

ANSWER_MAX_BYTES: Final = 512 << 20
CLIENT_ID: Final = "lakestream-cli"
NAMED_TOPICS_UNTIL: Final = {0: 12, 1: 12, 8: 9, 9: 9}
"""The last version of an API that names topics; later versions take topic ids, which the client does not look up."""

_BY_REQUEST: Final = {api.request: api for api in APIS.values()}
_PREFIX: Final = struct.Struct(">ihhih")


class Unreachable(LakestreamError):
    """The broker cannot be reached, or the connection broke before the answer arrived."""


class NoKafka(Unreachable):
    """The answer is not in Kafka's protocol: the address is that of another kind of server."""


class BrokerConnection:
    """A connection to a broker; `connect` makes it. A call that raises Unreachable may have taken effect or not."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = name
        self._reader = reader
        self._writer = writer
        self._versions: dict[int, tuple[int, int]] = {}
        self._correlation_id = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._answers = asyncio.create_task(self._read_answers())

    @property
    def is_open(self) -> bool:
        return not self._answers.done()

    async def call(self, request: Any, timeout_s: float) -> Any:
        """Send a request in the newest version that both sides know; returns the answer."""
        api = _BY_REQUEST[type(request)]
        return await self._send(api, self._version(api), request, timeout_s)

    async def introduce(self, timeout_s: float) -> None:
        """Ask for the broker's API versions, in version 0, which every broker knows."""
        answer = await self._send(APIS[framing.API_VERSIONS], 0, ApiVersionsRequest(), timeout_s)
        self._versions = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}

    async def close(self) -> None:
        self._answers.cancel()
        self._writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._writer.wait_closed()

    def _version(self, api: Api) -> int:
        low, high = self._versions.get(api.key, (0, -1))
        ours = NAMED_TOPICS_UNTIL.get(api.key, api.max_version)
        version = min(high, ours)
        if version < max(low, api.min_version, api.readable_from):
            raise LakestreamError(f"the broker at {self.name} does not speak {api.name} in a version of this client")
        return version

    async def _send(self, api: Api, version: int, request: Any, timeout_s: float) -> Any:
        if not self.is_open:
            raise Unreachable(f"the broker at {self.name} closed the connection")
        self._correlation_id += 1
        flexible = api.is_flexible(version)
        frame = bytearray(_PREFIX.size) + CLIENT_ID.encode() + (b"\0" if flexible else b"")
        codec.encode_into(frame, request, version, flexible)
        _PREFIX.pack_into(frame, 0, len(frame) - 4, api.key, version, self._correlation_id, len(CLIENT_ID))
        answered = asyncio.get_running_loop().create_future()
        self._waiting[self._correlation_id] = answered
        self._writer.write(frame)
        try:
            body = await asyncio.wait_for(answered, timeout_s)
        except TimeoutError:
            raise Unreachable(f"the broker at {self.name} did not answer {api.name} in {timeout_s:g} s") from None
        start = 4
        if framing.has_flexible_response_header(api.key, flexible):
            start = framing.skip_tags(body, start)
        return codec.decode(api.response, version, flexible, body, start)

    async def _read_answers(self) -> None:
        failure = Unreachable(f"the broker at {self.name} closed the connection")
        try:
            while True:
                (size,) = struct.unpack(">i", await self._reader.readexactly(4))
                if not 4 <= size <= ANSWER_MAX_BYTES:
                    failure = NoKafka(f"{self.name} does not speak Kafka's protocol")
                    return
                body = await self._reader.readexactly(size)
                answered = self._waiting.pop(struct.unpack_from(">i", body)[0], None)
                if answered is not None and not answered.done():
                    answered.set_result(body)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writer.close()
            for answered in self._waiting.values():
                if not answered.done():
                    answered.set_exception(failure)


async def connect(host: str, port: int, timeout_s: float) -> BrokerConnection:
    """Connect to a broker and learn its API versions. Raises Unreachable."""
    name = address(host, port)
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port, limit=1 << 20), timeout_s)
    except (OSError, TimeoutError) as error:
        reason = getattr(error, "strerror", None) or "no answer"
        raise Unreachable(f"cannot reach {name}: {reason}") from None
    connection = BrokerConnection(name, reader, writer)
    try:
        await connection.introduce(timeout_s)
    except BaseException:
        await connection.close()
        raise
    return connection

"""A load generator that costs next to nothing: prebuilt frames, a fixed window outstanding on each connection.

All frames of a connection are alike but for the correlation id, and so are all good answers: a window is sent by
slicing one buffer, and answers are checked many at a time. So the client's core is never the first to be full.
"""

import selectors
import socket
import struct
import time

import numpy as np

from bench.frames import error_position, produce_frame, receive

RECEIVE_BYTES = 1 << 18


class Pipeline:
    """One connection that always has `window` requests outstanding."""

    def __init__(
        self, address: tuple[str, int], topic: str, partition: int, size: int, window: int, records: int
    ) -> None:
        frames = [produce_frame(topic, partition, b"x" * size, number, records) for number in range(window)]
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(frames[0])
        answer = receive(self.socket)
        self._stride, self._error = len(answer), error_position(topic)
        assert struct.unpack_from(">h", answer, self._error)[0] == 0, f"refused: {answer.hex()}"
        self.socket.setblocking(False)
        self._frame = len(frames[0])
        self._ring = memoryview(b"".join(frames) * 2)
        self._window = window
        self._due = window * self._frame
        self._sent = 0
        self._partial = bytearray()
        self.answered = 0

    @property
    def must_write(self) -> bool:
        return self._sent < self._due

    def write(self) -> None:
        place = self._sent % (self._window * self._frame)
        size = min(self._due - self._sent, self._window * self._frame)
        try:
            self._sent += self.socket.send(self._ring[place : place + size])
        except BlockingIOError:
            return

    def read(self, refill: bool) -> None:
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._partial += data
        count = len(self._partial) // self._stride
        if not count:
            return
        table = np.frombuffer(self._partial[: count * self._stride], np.uint8).reshape(count, self._stride)
        if table[:, self._error : self._error + 2].any() or (table[:, 3] != self._stride - 4).any():
            raise RuntimeError("an answer carries an error")
        numbers = table[:, 4:8].copy().view(">i4")[:, 0]
        if (numbers != (np.arange(count) + self.answered) % self._window).any():
            raise RuntimeError("answers are out of order")
        del self._partial[: count * self._stride]
        self.answered += count
        if refill:
            self._due += count * self._frame

    @property
    def idle(self) -> bool:
        return self.answered * self._frame >= self._due


def run(pipelines: list[Pipeline], seconds: float) -> int:
    """Keep all windows full for a while, then wait for the last answers; returns the number of answers."""
    before = sum(one.answered for one in pipelines)
    with selectors.DefaultSelector() as selector:
        for one in pipelines:
            one.write()
            selector.register(one.socket, selectors.EVENT_READ, one)
        end = time.perf_counter() + seconds
        open_ones = len(pipelines)
        while open_ones:
            refill = time.perf_counter() < end
            for key, events in selector.select(5.0):
                one = key.data
                if events & selectors.EVENT_READ:
                    one.read(refill)
                if one.must_write:
                    one.write()
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if one.must_write else 0)
                if not refill and one.idle:
                    selector.unregister(one.socket)
                    open_ones -= 1
                elif wanted != key.events:
                    selector.modify(one.socket, wanted, one)
            if time.perf_counter() > end + 60:
                raise TimeoutError("answers are missing a minute after the last request")
    return sum(one.answered for one in pipelines) - before

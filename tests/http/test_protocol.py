"""The head of an answer goes out with the first bytes of its body, and never waits for long."""

from __future__ import annotations

import asyncio

from outlive.http.protocol import Joined


class Recorder(asyncio.Transport):
    """A transport that remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[bytes | str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.told.append(bytes(data))

    def close(self) -> None:
        self.told.append("close")

    def is_closing(self) -> bool:
        return "close" in self.told


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def test_a_head_and_its_body_are_one_write() -> None:
    async def check() -> None:
        below = Recorder()
        joined = Joined(below, asyncio.get_running_loop())
        joined.write(HEAD)
        joined.write(b"one")
        joined.write(b"two")
        await asyncio.sleep(0)
        assert below.told == [HEAD + b"one", b"two"]

    asyncio.run(check())


def test_a_head_without_a_body_goes_out_at_the_end_of_the_round() -> None:
    async def check() -> None:
        below = Recorder()
        joined = Joined(below, asyncio.get_running_loop())
        joined.write(HEAD)
        assert below.told == []
        await asyncio.sleep(0)
        assert below.told == [HEAD]

    asyncio.run(check())


def test_closing_sends_what_was_kept_back() -> None:
    async def check() -> None:
        below = Recorder()
        joined = Joined(below, asyncio.get_running_loop())
        joined.write(HEAD)
        joined.close()
        assert below.told == [HEAD, "close"]
        assert joined.is_closing()

    asyncio.run(check())


def test_the_next_answer_on_the_connection_is_joined_too() -> None:
    async def check() -> None:
        below = Recorder()
        joined = Joined(below, asyncio.get_running_loop())
        for body in (b"first", b"second"):
            joined.write(HEAD)
            joined.write(body)
        await asyncio.sleep(0)
        assert below.told == [HEAD + b"first", HEAD + b"second"]

    asyncio.run(check())

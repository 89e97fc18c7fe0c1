"""The target of an attack, and the list of attacks: each is one function that runs for some seconds."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

MB = 1_000_000
# Seconds in which an attack may prepare itself: store a long history, say.
PREPARATION_SECONDS = 15.0
ADDRESS = "127.0.0.2"  # of the attacker: limits per address must not be the victim's problem


@dataclass
class Target:
    """The server under attack, a key of it that is not the victim's, and a port that it knows as an upstream."""

    port: int
    key: str
    upstream: int
    seconds: float

    def __post_init__(self) -> None:
        self.end = time.monotonic() + PREPARATION_SECONDS

    def begin(self) -> None:
        """Begin the attack: what was done before prepared it."""
        self.end = time.monotonic() + self.seconds
        # A request that is never answered must not keep the attack going.
        timer = threading.Timer(self.seconds + 1, os._exit, (0,))
        timer.daemon = True
        timer.start()

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.end

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), 10, source_address=(ADDRESS, 0))
        connection.settimeout(2)
        return connection

    def flood(self, first: bytes, pieces: Iterator[bytes]) -> None:
        """Send without reading until the server closes the connection, or the time is over."""
        with self.connect() as connection, contextlib.suppress(OSError):
            connection.sendall(first)
            for piece in pieces:
                if self.is_over:
                    return
                connection.sendall(piece)

    def ask(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Any:
        """Send one request and return its JSON; None where the server refuses to read it to the end."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        given = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json", **(headers or {})}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60, source_address=(ADDRESS, 0))
        try:
            connection.request(method, path, raw, given)
            return json.loads(connection.getresponse().read())
        except (OSError, HTTPException, ValueError):
            return None
        finally:
            connection.close()

    def ask_without_reading(self, method: str, paths: list[str], body: str = "") -> None:
        """Send requests on connections of their own until the time is over, and read no answer."""
        held: list[socket.socket] = []
        for number in range(100):
            if self.is_over:
                return
            head = f"{method} {paths[number % len(paths)]} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\nAuthorization: Bearer {self.key}\r\n\r\n"
            with contextlib.suppress(OSError):
                held.append(self.connect())
                held[-1].sendall((head + body).encode())
        while not self.is_over:
            time.sleep(0.1)

    def create(self, **fields: Any) -> Any:
        return self.ask("POST", "/v1/responses", {"model": "usual/any", "input": "Hi", **fields})


Attack = Callable[[Target], None]
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    """Add a function to the attacks, which begins at once."""

    def run(target: Target) -> None:
        target.begin()
        function(target)

    ATTACKS[function.__name__] = run
    return function


def prepared_attack(function: Attack) -> Attack:
    """Add a function to the attacks, which calls `begin` when it is prepared."""
    ATTACKS[function.__name__] = function
    return function


def repeat(piece: bytes, total: int) -> Iterator[bytes]:
    for _ in range(total // len(piece)):
        yield piece


def together(target: Target, count: int, work: Callable[[int], None]) -> None:
    """Do the work in so many threads at once, each until the time is over."""

    def run(number: int) -> None:
        while not target.is_over:
            with contextlib.suppress(OSError):
                work(number)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(target.seconds + 5)

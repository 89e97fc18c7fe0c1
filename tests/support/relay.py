"""A TCP relay between a client and a server that can swallow answers and cut connections, as networks do."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Self


class Relay:
    """Passes bytes both ways. `swallow` first, then `cut`: the request arrives, its answer never does."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._swallowing = threading.Event()
        self._lock = threading.Lock()
        self.accepted = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True, name="relay").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    @property
    def port(self) -> int:
        port: int = self._listening.getsockname()[1]
        return port

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def swallow(self, on: bool = True) -> None:
        """From now on, whatever the server answers goes nowhere."""
        if on:
            self._swallowing.set()
        else:
            self._swallowing.clear()

    def cut(self) -> None:
        """Reset every connection, on both sides."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for each in (end for pair in pairs for end in pair):
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            with self._lock:
                self._pairs.append((near, far))
                self.accepted += 1
            threading.Thread(target=self._pump, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                if not (answers and self._swallowing.is_set()):
                    sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)

"""Starts the MCP server of the tests as a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAM = Path(__file__).with_name("mcp_program.py")
SECONDS = 30.0


class McpServer:
    """A running MCP server, and the calls that it has received."""

    def __init__(self, folder: Path, transport: str = "http") -> None:
        self.folder = folder
        self.transport = transport
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/{'sse' if transport == 'sse' else 'mcp'}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> McpServer:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(PROGRAM), self.transport, str(self.port), str(self.folder)]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))
        until = time.monotonic() + SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return self
            except OSError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> McpServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def calls(self) -> list[dict[str, Any]]:
        file = self.folder / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def calls_of(self, tool: str) -> list[dict[str, Any]]:
        return [call for call in self.calls if call["tool"] == tool]

    def forget_calls(self) -> None:
        """Delete the record of calls."""
        (self.folder / "calls").unlink(missing_ok=True)

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def close_gate(self) -> None:
        (self.folder / "gate").unlink(missing_ok=True)

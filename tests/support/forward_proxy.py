"""A real forward proxy: tinyproxy as a process of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.support.server import free_port

SECONDS = 20.0
USER, PASSWORD = "outlive", "s3cret-pass"

needs_tinyproxy = pytest.mark.skipif(
    shutil.which("tinyproxy") is None, reason="needs tinyproxy: apt-get install tinyproxy-bin"
)


class ForwardProxy:
    """A proxy that asks for USER and PASSWORD."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._log_file = folder / "tinyproxy.log"
        self._settings = folder / "tinyproxy.conf"
        self._settings.write_text(
            f"Port {self.port}\nListen 127.0.0.1\nAllow 127.0.0.1\nTimeout 60\nMaxClients 50\n"
            f'BasicAuth {USER} {PASSWORD}\nLogFile "{self._log_file}"\nLogLevel Connect\n'
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{USER}:{PASSWORD}@127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[str]:
        """The request lines that it got."""
        lines = self._log_file.read_text(errors="replace").splitlines()
        return [line.partition("): ")[2] for line in lines if "Request (file descriptor" in line]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(["tinyproxy", "-d", "-c", str(self._settings)], stdout=subprocess.DEVNULL)
        until = time.monotonic() + SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return self
            except OSError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

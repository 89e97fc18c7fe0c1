"""A server process that can be started, killed, and searched for text on disk."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """`outlive serve` with the embedded model, writing into one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = find_free_port()
        self.log = folder / "server.log"
        self.database = folder / "outlive.db"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it is ready."""
        command = [str(Path(sys.executable).with_name("outlive")), "serve"]
        command += ["--port", str(self.port), "--database", f"sqlite:///{self.database}"]
        # Settings in the environment must not change the demo.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("OUTLIVE_")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, env=environ, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
                raise RuntimeError(f"The server did not start. The end of its log:\n{tail}")
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill it without a warning, as a crash would."""
        assert self._process
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def files(self) -> list[Path]:
        """Return every file it could have written to: those in its folder, and the regular files it has open."""
        found = {file.resolve() for file in self.folder.rglob("*") if file.is_file()}
        for link in Path(f"/proc/{self.pid}/fd").glob("*"):
            try:
                target = link.resolve(strict=True)
            except OSError:
                continue  # a socket or a pipe, or closed in the meantime
            if target.is_file():
                found.add(target)
        return sorted(found)

    def find(self, words: str) -> list[Path]:
        """Return the files that contain `words`."""
        return [file for file in self.files() if words.encode() in file.read_bytes()]

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

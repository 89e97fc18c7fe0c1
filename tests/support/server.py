"""A real `outlive serve` process on a free port with a database of its own, that a test may kill and start again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import nesting
from tests.support.postgres import SHELF

START_SECONDS = 30.0
STOP_SECONDS = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class OutliveServer:
    """One server: its folder holds the database and the log; started, it serves until it is killed or stopped."""

    def __init__(
        self,
        folder: Path,
        upstream: str | None,
        *flags: str,
        env: Mapping[str, str] | None = None,
        port: int = 0,
        database_url: str | None = None,
    ) -> None:
        self.folder = folder
        self.flags = list(flags)
        self.env = dict(env or {})
        self.port = port or free_port()
        self.database = folder / "outlive.db"
        elsewhere = SHELF.lasting() if os.environ.get("OUTLIVE_TEST_ON") == "postgres" else None
        self._database_url = database_url or elsewhere
        self.log_file = folder / "server.log"
        self.upstream = upstream
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        if kind is None and self._database_url is None:
            # Whatever the test was about: every stream that was journaled must be a sound one.
            nesting.check_journals(self.database_url)

    @property
    def url(self) -> str:
        """Without the /v1."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """As an OpenAI client wants it."""
        return f"{self.url}/v1"

    @property
    def database_url(self) -> str:
        return self._database_url or f"sqlite:///{self.database.absolute()}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        """Everything it has printed and logged, over all its starts."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @property
    def command(self) -> list[str]:
        words = [sys.executable, "-m", "outlive", "serve", "--port", str(self.port)]
        words += ["--database", self.database_url]
        if self.upstream is not None:
            words += ["--upstream", self.upstream]
        return words + self.flags

    # -- its life

    def launch(self, **env: str) -> Self:
        """Start the process, without waiting until it serves."""
        assert self.process is None or self.process.poll() is not None, "it runs already"
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self._environment() | env,
            )
        return self

    def start(self, **env: str) -> Self:
        """Start it and wait until it is ready. `env` counts for this start alone (OUTLIVE_KILL_AT, say)."""
        self.launch(**env)
        self.wait_ready()
        return self

    def restart(self, **env: str) -> Self:
        """Start it again on the same port and database, after `kill` or `terminate`, or in place of a running one."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        return self.start(**env)

    def kill(self) -> None:
        """kill -9, and wait for the body."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        self._reap()

    def terminate(self, wait: bool = True) -> int | None:
        """SIGTERM. Returns the exit code, unless nobody waits for it."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait_exit() if wait else None

    def wait_exit(self, timeout: float = STOP_SECONDS) -> int:
        """The exit code, once it has ended (killed at an armed point: -9)."""
        assert self.process is not None
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not end:\n{self.log}") from None

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        deadline = time.monotonic() + timeout
        while not self.is_ready():
            assert self.process is not None
            if self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode}:\n{self.log}")
            assert time.monotonic() < deadline, f"it is not ready:\n{self.log}"
            time.sleep(0.02)

    def is_ready(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def _reap(self) -> None:
        if self.process is not None:
            self.process.wait(STOP_SECONDS)

    def _environment(self) -> dict[str, str]:
        """The test's environment, without anything that would configure this server behind its flags."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("OUTLIVE_") and not name.lower().endswith(("_api_key", "_proxy"))
        }
        return inherited | self.env

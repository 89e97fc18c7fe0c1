"""A real `outlive serve` process on a free port with a database of its own, which a test may kill and start again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import nesting
from tests.support.failpoints import check_point
from tests.support.http_client import HttpClient
from tests.support.postgres import DATABASES

SOURCE = Path(__file__).parents[2] / "src"
START_SECONDS = 30.0
STOP_SECONDS = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def search_path(folders: str | None) -> str:
    """Return a PYTHONPATH with these folders and the source beside the tests, which need not be the installed one."""
    return os.pathsep.join(filter(None, [folders, str(SOURCE)]))


class OutliveServer:
    """One server process. Its folder contains the database and the log of all its starts.

    `python` is the interpreter of another version's environment, where that is to be run.
    """

    def __init__(
        self,
        folder: Path,
        upstream: str | None,
        *flags: str,
        env: Mapping[str, str] | None = None,
        database_url: str | None = None,
        python: str = sys.executable,
    ) -> None:
        self.folder = folder
        self.flags = list(flags)
        self.env = dict(env or {})
        self.port = free_port()
        self.database = folder / "outlive.db"
        elsewhere = DATABASES.create() if os.environ.get("OUTLIVE_TEST_ON") == "postgres" else None
        self._database_url = database_url or elsewhere
        self.log_file = folder / "server.log"
        self.upstream = upstream
        self.process: subprocess.Popen[bytes] | None = None
        self._python = python

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        if kind is None and self._database_url is None:
            # Whatever the test was about: every journaled stream must follow the rules.
            nesting.check_journals(self.database_url)

    @property
    def url(self) -> str:
        """The address without /v1."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """The address for an OpenAI client."""
        return f"{self.url}/v1"

    @property
    def client(self) -> HttpClient:
        return HttpClient(self.port)

    @property
    def database_url(self) -> str:
        return self._database_url or f"sqlite:///{self.database.absolute()}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> str:
        """All output of all its starts."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @property
    def command(self) -> list[str]:
        words = [self._python, "-m", "outlive", "serve", "--port", str(self.port)]
        words += ["--database", self.database_url]
        if self.upstream is not None:
            words += ["--upstream", self.upstream]
        return words + self.flags

    @property
    def resident_bytes(self) -> int:
        """Its resident memory, as the kernel counts it."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def cpu_seconds(self) -> float:
        """Its CPU time so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # -- starting and stopping

    def launch(self, **env: str) -> Self:
        """Start the process without waiting until it serves."""
        assert not self.is_running, "it is running already"
        if "OUTLIVE_KILL_AT" in env:
            check_point(env["OUTLIVE_KILL_AT"])
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
        """Start it and wait until it is ready. `env` applies to this start alone (OUTLIVE_KILL_AT, say)."""
        self.launch(**env)
        self.wait_ready()
        return self

    def restart(self, **env: str) -> Self:
        """Start it again on the same port and database; a running one is killed first."""
        self.kill()
        return self.start(**env)

    def kill(self) -> None:
        """Send SIGKILL and wait for the exit."""
        if self.process is not None:
            if self.is_running:
                self.process.kill()
            self.process.wait(STOP_SECONDS)

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def terminate(self) -> int:
        """Send SIGTERM, wait for the exit, and return the exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait_exit()

    def wait_exit(self, timeout: float = STOP_SECONDS) -> int:
        """Wait for the exit and return the exit code (-9 for one that was killed at a failpoint)."""
        assert self.process is not None
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not exit:\n{self.log}") from None

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        deadline = time.monotonic() + timeout
        while not self.is_ready():
            assert self.process is not None
            if self.process.poll() is not None:
                raise AssertionError(f"it exited with {self.process.returncode}:\n{self.log}")
            assert time.monotonic() < deadline, f"it is not ready:\n{self.log}"
            time.sleep(0.02)

    def is_ready(self) -> bool:
        return self.client.ready_status() == 200

    def _environment(self) -> dict[str, str]:
        """The test's environment, without variables that would configure this server besides its flags."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OUTLIVE_", "OTEL_")) and not name.lower().endswith(("_api_key", "_proxy"))
        }
        own = inherited | self.env
        if self._python == sys.executable:
            return own | {"PYTHONPATH": search_path(self.env.get("PYTHONPATH"))}
        return own | {"PYTHONPATH": self.env.get("PYTHONPATH", "")}  # not the modules of this version

"""The processes under measurement: how each is started, where it answers, and how it is ended."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import machine

_HERE = Path(__file__).resolve().parent


@dataclass
class Server:
    """One server process. `prefix` stands before model names where a peer wants one."""

    name: str
    command: list[str]
    port: int
    cores: set[int]
    log: Path
    prefix: str = ""
    pid: int = 0
    database: Path | None = None
    database_processes: Callable[[], list[int]] = list  # where the database is a server of its own
    others: list[Server] = field(default_factory=list)  # further nodes, which clients are spread over
    environment: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self, timeout: float = 60) -> None:
        """Start and wait until the port is open; without a command, it was started before."""
        if self.command:
            with machine.pinned(self.cores), self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    self.command,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    env=_environment() | self.environment,
                    cwd=self.log.parent,
                )
        deadline = time.monotonic() + timeout
        while not _is_open(self.port):
            if self._process is not None and self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self._process.returncode}:\n{self.last_words()}")
            if time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self.name} does not listen on port {self.port}:\n{self.last_words()}")
            time.sleep(0.05)
        self.pid = self._process.pid if self._process is not None else machine.listener(self.port) or 0

    def stop(self, by: int = signal.SIGTERM) -> None:
        if self._process is None:
            return
        self._process.send_signal(by)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def family(self) -> list[int]:
        return [process for each in (self, *self.others) for process in machine.family(each.pid)]

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-1500:] if self.log.exists() else ""


def _environment() -> dict[str, str]:
    """The checkout beside this file is what is measured, with no settings but those on the command line."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OUTLIVE_")}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_HERE.parent / "src"), kept.get("PYTHONPATH"))))
    return kept


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def upstream(directory: Path, cores: set[int]) -> Server:
    port = machine.free_port()
    command = [sys.executable, str(_HERE / "upstream.py"), "--port", str(port)]
    return Server("upstream", command, port, cores, directory / "upstream.log")


def relay(directory: Path, cores: set[int], upstream: str) -> Server:
    port = machine.free_port()
    command = [sys.executable, str(_HERE / "relay.py"), "--port", str(port), "--upstream", upstream]
    return Server("relay", command, port, cores, directory / "relay.log")


def outlive(directory: Path, cores: set[int], upstream: str) -> Server:
    port, database = machine.free_port(), directory / "bench.db"
    command = [sys.executable, "-m", "outlive", "serve", "--port", str(port)]
    command += ["--database", f"sqlite:///{database}", "--upstream", upstream]
    return Server("outlive", command, port, cores, directory / "outlive.log", database=database)


def node(
    name: str, directory: Path, cores: set[int], upstream: str, url: str, processes: Callable[[], list[int]]
) -> Server:
    """One of several on a Postgres."""
    port = machine.free_port()
    command = [sys.executable, "-m", "outlive", "serve", "--port", str(port), "--database", url, "--upstream", upstream]
    return Server(name, command, port, cores, directory / f"{name}.log", database_processes=processes)


def peer(text: str, directory: Path, cores: set[int], upstream: str) -> Server:
    """NAME=COMMAND,PORT[,PREFIX]; {upstream} and {port} are filled in; with an empty command it runs already."""
    match = re.fullmatch(r"([\w.-]+)=(.*?),(\d+)(?:,(\S*))?", text)
    if not match:
        raise ValueError(f"a peer is NAME=COMMAND,PORT or NAME=COMMAND,PORT,MODEL-PREFIX, not {text!r}")
    name, command, port, prefix = match.groups()
    filled = command.replace("{upstream}", upstream).replace("{port}", port)
    return Server(name, shlex.split(filled), int(port), cores, directory / f"{name}.log", prefix or "")

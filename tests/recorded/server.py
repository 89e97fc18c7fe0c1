"""A server of any version of Outlive as a real process, a client of it that keeps bytes, and the recorded databases."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.support.postgres import PostgresServer

Json = dict[str, Any]

SECONDS = 30.0
DATA = Path(__file__).parent / "data"
DATABASES = ("sqlite", "postgres")
OWNERS = ("ann", "bob")
# Not secret: with it the secrets were sealed that recorded runs hold.
SEAL_KEY = "recorded-recorded-recorded-recorded-recorded"

CONFIG = """
[keys]
{keys}

[upstreams.plain]
url = "{url}/plain/v1"

[upstreams.prefill]
url = "{url}/prefill/v1"
continuation = "prefill"

[upstreams.responses]
url = "{url}/responses/v1"
dialect = "responses"

[upstreams.reattach]
url = "{url}/reattach/v1"
dialect = "responses"
reattach = true

[upstreams.claude]
url = "{url}/claude/v1"
dialect = "anthropic"

[mcp.desk]
url = "{url}/mcp"
"""


class Server:
    """A server in a folder of its own, which also holds its settings, its tools and its log."""

    def __init__(self, python: str, folder: Path, database: str, upstream: str, *flags: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).with_name("served.py"), folder)
        keys = "\n".join(f'{owner} = "{key_of(owner)}"' for owner in OWNERS)
        (folder / "outlive.toml").write_text(CONFIG.format(url=upstream, keys=keys))
        # A server on SQLite has its key beside its file, others are given one.
        for name in ("outlive.db.key", "seal.key"):
            (folder / name).write_text(SEAL_KEY)
        self.folder = folder
        self.port = _free_port()
        self.env: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None
        # Nothing expires, so that what was recorded stays readable whenever the tests are run.
        self._command = [
            python, "-m", "outlive", "serve", "--port", str(self.port), "--database", database,
            "--config", "outlive.toml", "--tools", "served", "--agent", "served:clerk",
            "--response-days", "never", "--conversation-days", "never", "--lease-seconds", "1", *flags,
        ]  # fmt: skip
        if database.startswith("postgres"):
            self._command += ["--seal-key-file", "seal.key"]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(signal.SIGKILL)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> Self:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OUTLIVE_", "PYTHONPATH")) and not name.lower().endswith(("_api_key", "_proxy"))
        }
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=self.folder,
                env=environment | self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._is_ready, "the server is ready")
        return self

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(SECONDS)
            self.process = None

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log
        try:
            return Client(self.port, OWNERS[0]).get("/readyz").status == 200
        except (OSError, HTTPException):
            return False


def key_of(owner: str) -> str:
    return f"key-of-{owner}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"it never came: {what}"
        time.sleep(0.01)


# -- the client


class Answer(NamedTuple):
    status: int
    type: str
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Asks a server in the name of one owner."""

    def __init__(self, port: int, owner: str) -> None:
        self.port = port
        self.owner = owner

    def ask(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            self._send(connection, method, path, body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.getheader("Content-Type", ""), response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, body: object = None, **headers: str) -> Answer:
        return self.ask("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def create(self, model: str, input: object = "Hi", **fields: Any) -> Json:
        """Create a response and return it as it ended, or as it was accepted."""
        answer = self.post("/v1/responses", {"model": model, "input": input, **fields})
        assert answer.status == 200, answer
        body: Json = answer.json
        return body

    def begin(self, body: Json, headers: dict[str, str]) -> HTTPConnection:
        """Create a response, leaving its answer to be read."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        self._send(connection, "POST", "/v1/responses", body, headers)
        return connection

    def wait_end(self, response_id: str) -> Json:
        deadline = time.monotonic() + SECONDS
        while True:
            body: Json = self.get(f"/v1/responses/{response_id}?wait=10").json
            if body["status"] not in ("queued", "in_progress"):
                return body
            assert time.monotonic() < deadline, body

    def replay(self, response_id: str, after: int | None = None) -> Answer:
        cursor = "" if after is None else f"&starting_after={after}"
        return self.get(f"/v1/responses/{response_id}?stream=true{cursor}")

    def read_available(self, response_id: str, quiet_seconds: float = 1.0) -> bytes:
        """Read the replay of a running response until nothing more comes for a while."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=quiet_seconds)
        read = b""
        try:
            self._send(connection, "GET", f"/v1/responses/{response_id}?stream=true", None, None)
            response = connection.getresponse()
            while piece := response.read1():
                read += piece
            raise AssertionError(f"{response_id} has ended: {read[-2000:]!r}")
        except TimeoutError:
            assert read.endswith(b"\n\n"), read
            return read
        finally:
            connection.close()

    def _send(
        self, connection: HTTPConnection, method: str, path: str, body: object, headers: dict[str, str] | None
    ) -> None:
        given = {"Authorization": f"Bearer {key_of(self.owner)}", **(headers or {})}
        raw = None if body is None else json.dumps(body).encode()
        if raw is not None:
            given["Content-Type"] = "application/json"
        connection.request(method, path, raw, given)


def last_number(frames: bytes) -> int:
    """Return the number of the last event."""
    return max(json.loads(line[6:])["sequence_number"] for line in frames.splitlines() if line.startswith(b"data: {"))


# -- the recorded databases


def load_sqlite(dump: Path, folder: Path) -> str:
    """Unpack a recorded file into a folder and return its URL."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "outlive.db").write_bytes(lzma.decompress(dump.read_bytes()))
    return f"sqlite:///{(folder / 'outlive.db').absolute()}"


def load_postgres(dump: Path, cluster: PostgresServer, name: str) -> str:
    """Load a recorded dump into a new database of the cluster and return its URL."""
    script = cluster.folder / f"{name}.sql"
    script.write_bytes(lzma.decompress(dump.read_bytes()))
    script.chmod(0o644)
    cluster.sql(f"CREATE DATABASE {name}")
    cluster.run("psql", "-qX", "-v", "ON_ERROR_STOP=1", "-d", cluster.url(name), "-f", str(script))
    return cluster.url(name)

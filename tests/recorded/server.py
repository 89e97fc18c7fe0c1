"""A server of any version of Outlive with the settings of the recordings, clients of it, and the recorded databases."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path
from typing import Any

from tests.support.http_client import HttpClient
from tests.support.postgres import PostgresServer
from tests.support.server import OutliveServer

Json = dict[str, Any]

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


class Server(OutliveServer):
    """A server whose folder also holds its settings and its tools."""

    def __init__(self, python: str, folder: Path, database: str, upstream: str, *flags: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).with_name("served.py"), folder)
        keys = "\n".join(f'{owner} = "{key_of(owner)}"' for owner in OWNERS)
        (folder / "outlive.toml").write_text(CONFIG.format(url=upstream, keys=keys))
        # A server on SQLite has its key beside its file, others are given one.
        for name in ("outlive.db.key", "seal.key"):
            (folder / name).write_text(SEAL_KEY)
        # Nothing expires, so that what was recorded stays readable whenever the tests are run.
        settings = [
            "--config", "outlive.toml", "--tools", "served", "--agent", "served:clerk",
            "--response-days", "never", "--conversation-days", "never", "--lease-seconds", "1", *flags,
        ]  # fmt: skip
        if database.startswith("postgres"):
            settings += ["--seal-key-file", "seal.key"]
        super().__init__(folder, None, *settings, database_url=database, python=python)


def key_of(owner: str) -> str:
    return f"key-of-{owner}"


def client_of(owner: str, port: int) -> HttpClient:
    return HttpClient(port, key_of(owner))


def create(client: HttpClient, model: str, input: object = "Hi", **fields: Any) -> Json:
    """Create a response and return it as it ended, or as it was accepted."""
    answer = client.create(model=model, input=input, **fields)
    assert answer.status == 200, answer
    body: Json = answer.json()
    return body


def replay(client: HttpClient, response_id: str) -> bytes:
    """Return all bytes of the replay of a response."""
    return client.get(f"/v1/responses/{response_id}?stream=true").body


def read_available(client: HttpClient, response_id: str, quiet_seconds: float = 1.0) -> bytes:
    """Read the replay of a running response until nothing more comes for a while."""
    with client.follow(response_id) as stream:
        stream.connection.sock.settimeout(quiet_seconds)
        read = b""
        try:
            while piece := stream.response.read1():
                read += piece
        except TimeoutError:
            assert read.endswith(b"\n\n"), read
            return read
        raise AssertionError(f"{response_id} has ended: {read[-2000:]!r}")


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

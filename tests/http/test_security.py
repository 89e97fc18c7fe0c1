"""The security log: what comes often is counted, and written once per interval for each client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlive.core.errors import InvalidRequest, NotFound, OutliveError, TooLarge, TooMany
from outlive.http import security
from outlive.http.security import SecurityLog


def scope(peer: str, **headers: str) -> dict[str, Any]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"client": (peer, 1), "headers": pairs, "path": "/v1/responses/resp_1"}


def fields(record: Any) -> dict[str, Any]:
    names = ("address", "owner", "code", "count", "path", "request_id")
    return {"message": record.message} | {name: record.__dict__[name] for name in names if record.__dict__.get(name)}


def test_refusals_of_one_client_are_one_line_with_their_count(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "INTERVAL_SECONDS", 0.01)

    async def main() -> None:
        log = SecurityLog(["10.0.0.1"])
        for address in ("192.0.2.1", "192.0.2.1", "2001:db8::1", "2001:db8::2"):
            log.count("key refused", log.find_address(scope("10.0.0.1", x_forwarded_for=address)), code="no")
        assert not caplog.records
        while not caplog.records:
            await asyncio.sleep(0.001)
        log.count("key refused", "192.0.2.1")
        log.flush()

    asyncio.run(main())
    assert [fields(record) for record in caplog.records] == [
        {"message": "key refused", "address": "192.0.2.1", "code": "no", "count": 2},
        {"message": "key refused", "address": "2001:db8::/64", "code": "no", "count": 2},
        {"message": "key refused", "address": "192.0.2.1", "count": 1},
    ]


def test_very_many_clients_are_counted_together(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        log = SecurityLog()
        for number in range(security.MAX_COUNTS + 100):
            log.count("key refused", f"10.0.{number // 250}.{number % 250}")
        log.count("key refused", "10.0.0.0")
        log.flush()

    asyncio.run(main())
    lines = [fields(record) for record in caplog.records]
    assert len(lines) == security.MAX_COUNTS + 1
    assert lines[0]["count"] == 2
    assert lines[-1] == {"message": "key refused", "address": "others", "count": 100}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TooMany(), "limit hit"),
        (TooLarge(), "limit hit"),
        (NotFound("Response with id 'x' not found."), "unknown id"),
        (InvalidRequest("no", code="previous_response_not_found"), "unknown id"),
        (NotFound("no", code="unknown_url"), None),
        (InvalidRequest("no"), None),
        (OutliveError("no"), None),
    ],
)
def test_only_limits_and_unknown_ids_are_counted(
    caplog: pytest.LogCaptureFixture, error: OutliveError, message: str | None
) -> None:
    async def main() -> None:
        log = SecurityLog()
        log.count_error(scope("192.0.2.1"), "alice", error)
        log.flush()

    asyncio.run(main())
    written = [(record.message, fields(record)["owner"]) for record in caplog.records]
    assert written == ([(message, "alice")] if message else [])

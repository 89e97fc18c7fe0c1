"""A short campaign with every run of the tests; `make fuzz` makes a long one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import campaign
from tests.fuzz.campaign import Tally
from tests.support.server import OutliveServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutliveServer]:
    folder: Path = tmp_path_factory.mktemp("field")
    with campaign.start_server(folder) as running:
        yield running


def conclude(capsys: Any, what: str, tally: Tally, least: int) -> None:
    with capsys.disabled():
        print(f"\n{what}: {tally}")
    assert tally.found == []
    assert tally.statuses["hang"] == 0
    assert tally.tried >= least
    assert not any(isinstance(status, int) and status >= 500 for status in tally.statuses)


def test_no_edge_case_of_the_document_fails_or_hangs(server: OutliveServer, capsys: Any) -> None:
    # It ends by itself, in some ten seconds.
    tally = campaign.run_document(server, 60, "coverage", number=1)
    conclude(capsys, "schemathesis, coverage", tally, 1000)


def test_no_request_that_the_document_allows_or_forbids_fails_or_hangs(server: OutliveServer, capsys: Any) -> None:
    tally = campaign.run_document(server, 4, "fuzzing", "stateful", number=1)
    conclude(capsys, "schemathesis, fuzzing and stateful", tally, 20)


def test_random_bodies_and_items_neither_fail_nor_hang(server: OutliveServer, capsys: Any) -> None:
    conclude(capsys, "bodies and items", campaign.run_bodies(server, 4), 20)


def test_any_items_that_are_taken_in_leave_a_conversation_that_answers(server: OutliveServer, capsys: Any) -> None:
    conclude(capsys, "items of any content", campaign.run_items(server, 4), 20)


def test_random_websocket_frames_neither_fail_nor_hang(server: OutliveServer, capsys: Any) -> None:
    conclude(capsys, "frames on a WebSocket", campaign.run_frames(server, 2), 20)

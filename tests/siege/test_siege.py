"""The short form of `make siege`: some attacks of each kind, for two seconds each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.siege.siege import besiege

SHORT = (
    "header_value", "pipelining", "trailers", "long_idempotency_keys", "many_mcp_tools", "small_json_values",
    "calls_to_compact", "empty_continuations", "endless_line", "endless_head", "unread_objects",
)  # fmt: skip


@pytest.mark.parametrize("attack", SHORT)
def test_an_attack_neither_delays_the_victim_nor_bloats_the_server(tmp_path: Path, attack: str) -> None:
    assert besiege(tmp_path, attack, "sqlite", 2).faults == []


def test_long_idempotency_keys_fail_no_request_of_others_on_postgres(tmp_path: Path) -> None:
    assert besiege(tmp_path, "long_idempotency_keys", "postgres", 2).faults == []

"""The short form of `make siege`: some attacks of each kind, for two seconds each."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.siege.siege import besiege

SHORT = (
    "header_value", "pipelining", "trailers", "long_idempotency_keys", "many_mcp_tools", "small_json_values",
    "calls_to_compact", "empty_continuations", "endless_line", "endless_head", "unread_answers",
    "large_running_requests",
)  # fmt: skip


@pytest.mark.parametrize("attack", SHORT)
def test_an_attack_neither_delays_the_victim_nor_bloats_the_server(tmp_path: Path, attack: str) -> None:
    assert besiege(tmp_path, attack, "sqlite", 2).faults == []


def test_long_idempotency_keys_fail_no_request_of_others_on_postgres(tmp_path: Path) -> None:
    assert besiege(tmp_path, "long_idempotency_keys", "postgres", 2).faults == []


# glibc would keep all but the first block in a heap that the last one stops from shrinking.
FREE_BLOCKS = """
import resource
from outlive.server import return_large_blocks
return_large_blocks()
first = b"x" * 30_000_000
del first
blocks = [b"x" * 20_000_000 for _ in range(10)]
del blocks[:-1]
with open("/proc/self/statm") as statm:
    print(int(statm.read().split()[1]) * resource.getpagesize())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries return blocks by themselves")
def test_large_blocks_go_back_to_the_system_when_they_are_freed() -> None:
    made = subprocess.run([sys.executable, "-c", FREE_BLOCKS], capture_output=True, text=True, check=True)
    assert int(made.stdout) < 150_000_000

"""`make cluster` for a few seconds, without a terminal."""

from __future__ import annotations

import subprocess
import sys


def test_make_cluster_shows_kills_and_takeovers_and_loses_no_event() -> None:
    words = [sys.executable, "-m", "tests.chaos.dashboard", "--seconds", "4", "--users", "8"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kills" in done.stdout and "takeovers" in done.stdout
    assert "0 lost events that a client saw, 0 gaps in sequence numbers, 0 repeated sequence numbers" in " ".join(
        done.stdout.split()
    )

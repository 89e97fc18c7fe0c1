"""`make cluster`, for a few seconds and without a terminal."""

from __future__ import annotations

import subprocess
import sys


def test_the_cluster_can_be_watched_and_loses_nothing() -> None:
    words = [sys.executable, "-m", "tests.chaos.cluster", "--seconds", "4", "--users", "8"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kills" in done.stdout and "takeovers" in done.stdout
    assert "0 events lost that a client saw, 0 gaps, 0 repeats" in " ".join(done.stdout.split())

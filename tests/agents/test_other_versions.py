"""An openai-agents whose private names have changed works as before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.other_versions import rename, run_tests

PRIVATE = (
    "_mark_error_to_drain_stream_events",
    "_mark_transport_request_without_usage",
    "_fetch_response",
    "_build_response_create_kwargs",
    "_get_client",
    "_prune_closed_ws_loop_caches",
    "_ws_model_cache_by_loop",
)


def test_a_warning_and_the_doctor_name_what_is_lost_with_another_sdk(tmp_path: Path) -> None:
    env = os.environ | rename(tmp_path, "agents", *PRIVATE)
    losses = (
        "a failed stream of outlive.agents ends 0.2 s later",
        "DurableProvider does not use the SDK's default client",
    )
    for words in (["-c", "import outlive.agents"], ["-m", "outlive", "doctor", "--port", "0", "--no-probe", "--json"]):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
        )
        assert all(loss in done.stdout + done.stderr for loss in losses), done.stdout + done.stderr


def test_agents_work_with_an_sdk_whose_private_names_have_changed(tmp_path: Path) -> None:
    env = rename(tmp_path, "agents", *PRIVATE)
    run_tests(env, "tests/agents/test_streaming.py", "tests/agents/test_strict.py", "tests/agents/test_background.py")

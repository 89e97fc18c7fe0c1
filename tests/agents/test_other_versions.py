"""An openai-agents whose private names have changed works as before."""

from __future__ import annotations

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


def test_agents_work_with_an_sdk_whose_private_names_have_changed(tmp_path: Path) -> None:
    env = rename(tmp_path, "agents", *PRIVATE)
    run_tests(env, "tests/agents/test_streaming.py", "tests/agents/test_strict.py", "tests/agents/test_background.py")

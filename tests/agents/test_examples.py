"""The examples run; a script that is killed twice finishes with one upstream call for each turn."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import uvicorn
from agents import set_tracing_disabled

from tests.support.server import OutliveServer, free_port
from tests.support.upstream import FakeUpstream, Gate, call, ending, say

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_background_example_prints_three_answers(
    server: OutliveServer, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = upstream.model(say("Rivers", " carry", " salt."))
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    monkeypatch.setenv("MODEL", model)
    try:
        runpy.run_path(str(EXAMPLES / "plain_and_background.py"), run_name="__main__")
    finally:
        set_tracing_disabled(False)  # switched off by the example; other tests read spans
    printed = [line.split(":", 1) for line in capsys.readouterr().out.splitlines()]
    assert [(how, what.strip()) for how, what in printed] == [
        (how, "Rivers carry salt.") for how in ("plain", "background", "streamed")
    ]


class Script:
    """One process of examples/killed_and_restarted.py."""

    def __init__(self, server: OutliveServer, model: str, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "killed_and_restarted.py"), str(folder)],
            env=os.environ | {"OPENAI_BASE_URL": server.base_url, "MODEL": model},
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_line(self, line: str) -> None:
        assert self._process.stdout is not None
        for printed in self._process.stdout:
            if printed.strip() == line:
                return
        raise AssertionError(f"the script never printed {line!r}")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=60)

    def finish(self) -> str:
        printed, _ = self._process.communicate(timeout=60)
        assert self._process.returncode == 0
        return printed


def test_killed_and_restarted_script_makes_one_upstream_call_for_each_turn(
    server: OutliveServer, upstream: FakeUpstream, tmp_path: Path
) -> None:
    thinking = Gate()
    calls = [call(0, "{}", id="call_1", name="charge_card"), call(1, "{}", id="call_2", name="wait_for_approval")]
    model = upstream.model([thinking, *calls, *ending("tool_calls")], say("Paid."))

    in_the_first_turn = Script(server, model, tmp_path)
    thinking.wait_reached()
    in_the_first_turn.kill()
    thinking.open()

    between_the_turns = Script(server, model, tmp_path)
    between_the_turns.wait_line("recorded: charge_card")
    between_the_turns.kill()

    (tmp_path / "approved").touch()
    printed = Script(server, model, tmp_path).finish()
    assert "done: Paid." in printed
    assert len(upstream.calls(model)) == 2, "one call for each turn"
    assert (tmp_path / "charges").read_text() == "charged\n", "a recorded tool is not fired again"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def post(url: str, text: str) -> tuple[int, dict[str, Any]]:
    with urllib.request.urlopen(urllib.request.Request(url, text.encode()), timeout=20) as answer:
        return answer.status, json.load(answer)


def test_web_handler_detaches_and_answers_a_later_request(
    server: OutliveServer, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    thinking = Gate()
    model = upstream.model([thinking, *say("Rivers carry salt.")])
    for name, value in (("OPENAI_BASE_URL", server.base_url), ("MODEL", model), ("WAIT_SECONDS", "0.5")):
        monkeypatch.setenv(name, value)
    port = free_port()
    web = uvicorn.Server(uvicorn.Config(load("web_handler").app, port=port, log_level="error"))
    thread = threading.Thread(target=web.run, daemon=True)
    thread.start()
    while not web.started:
        time.sleep(0.01)
    try:
        status, body = post(f"http://127.0.0.1:{port}/ask", "Why is the sea salty?")
        assert status == 202
        thinking.open()
        asked_again = f"http://127.0.0.1:{port}{body['ask_again']}"
        while (answered := post(asked_again, "Why is the sea salty?"))[0] == 202:
            pass
        assert answered[1]["answer"] == "Rivers carry salt."
    finally:
        web.should_exit = True
        thread.join(10)
    assert len(upstream.calls(model)) == 1

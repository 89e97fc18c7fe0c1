"""The log of a real server: a line per request and per ended response, ids that go through, and never content."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from outlive.telemetry import logs
from tests.support.http_client import Json
from tests.support.server import OutliveServer
from tests.support.upstream import CUT, HANG, FakeUpstream, Gate, Refuse, call, ending, say, text
from tests.support.waiting import wait_until
from tests.telemetry.conftest import Serve
from tests.wire.websocket import open_websocket

ROOT = Path(__file__).parents[2]
CANARY = "canary-7f3a"
TOOLS = '''
def divide(number: int) -> str:
    """Divide."""
    raise ValueError("7f3a".join(["canary-", str(number)]))
'''


def read_lines(server: OutliveServer, message: str) -> list[Json]:
    lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["message"] == message]


def wait_line(server: OutliveServer, message: str, **fields: object) -> Json:
    """Wait for the only line with that message and those fields, and return it."""

    def find() -> list[Json]:
        return [line for line in read_lines(server, message) if fields.items() <= line.items()]

    wait_until(lambda: len(find()) > 0, f"a line {message!r} with {fields}")
    (line,) = find()
    return line


def test_a_request_and_the_response_it_creates_are_a_line_each_with_the_same_ids(
    serve: Serve, upstream: FakeUpstream
) -> None:
    server = serve("--log-format", "json")
    conversation, model = server.client.create_conversation(), upstream.model(say("a", "b"))
    answer = server.client.request(
        "POST", "/v1/responses", {"model": model, "input": "x", "conversation": conversation}, **{"x-request-id": "r-1"}
    )
    assert answer.headers["x-request-id"] == "r-1"
    asked = wait_line(server, "request ended", request_id="r-1")
    ended = wait_line(server, "response ended", request_id="r-1")
    response_id = answer.json()["id"]
    assert (asked["method"], asked["path"], asked["status"]) == ("POST", "/v1/responses", 200)
    assert (asked["level"], asked["logger"], asked["owner"]) == ("info", "outlive.http.app", "local")
    assert asked["response_id"] == ended["response_id"] == response_id
    assert (ended["conversation_id"], ended["model"], ended["owner"]) == (conversation, model, "local")
    assert (ended["status"], ended["attempts"], ended["input_tokens"], ended["output_tokens"]) == ("completed", 1, 5, 2)
    assert 0 <= ended["first_token_ms"] <= ended["duration_ms"] <= asked["duration_ms"] + 1000
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", ended["time"])
    assert ended["node"] == asked["node"]
    server.client.get(f"/v1/conversations/{conversation}/items")
    assert wait_line(server, "request ended", path=f"/v1/conversations/{conversation}/items")["status"] == 200


def test_a_failed_response_and_each_failed_request_to_the_upstream_are_warnings(
    serve: Serve, upstream: FakeUpstream
) -> None:
    server, model = serve("--log-format", "json"), upstream.model([Refuse(400)])
    server.client.create(model)
    ended, broken = wait_line(server, "response ended"), wait_line(server, "upstream request failed")
    assert (ended["level"], ended["status"], ended["code"]) == ("warning", "failed", "invalid_prompt")
    assert (broken["level"], broken["status"], broken["response_id"]) == ("warning", 400, ended["response_id"])
    assert wait_line(server, "request ended", path="/v1/responses")["status"] == 400


def test_an_id_that_is_not_safe_to_log_is_replaced(serve: Serve, upstream: FakeUpstream) -> None:
    server = serve()
    for given in ("a b", "x" * 129, "'; drop", "é", "-x"):
        answer = server.client.get("/v1/models", **{"x-request-id": given.encode().decode("latin-1")})
        assert answer.headers["x-request-id"].startswith("req_")
    wait_until(lambda: server.log.count(" request ended ") == 5, "five lines")
    assert "drop" not in server.log


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
def test_the_id_and_the_trace_context_go_to_the_upstream(serve: Serve, upstream: FakeUpstream, dialect: str) -> None:
    server, model = serve("--upstream-dialect", dialect), upstream.model(say("a"))
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "vendor=1"}
    server.client.request("POST", "/v1/responses", {"model": model, "input": "x"}, **{"x-request-id": "r-1"}, **trace)
    sent = upstream.calls(model)[0].headers
    assert re.fullmatch(r"r-1\.[0-9a-f]{8}", sent["x-request-id"])
    assert {name: sent[name] for name in trace} == trace


def test_a_chat_completion_passes_the_id_on_and_ids_at_the_upstream_never_repeat(
    serve: Serve, upstream: FakeUpstream
) -> None:
    server, model = serve(), upstream.model(say("a"))
    body = {"model": model, "messages": [{"role": "user", "content": "x"}]}
    for _ in range(2):
        server.client.request("POST", "/v1/chat/completions", body, **{"x-request-id": "same"})
    first, second = (each.headers["x-request-id"] for each in upstream.calls(model))
    assert first.startswith("same.") and second.startswith("same.") and first != second


def test_the_id_survives_a_crash(serve: Serve, upstream: FakeUpstream) -> None:
    server, gate = serve("--log-format", "json"), Gate()
    model = upstream.model([gate, HANG], say("a"))
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    body = {"model": model, "input": "x", "background": True}
    server.client.request("POST", "/v1/responses", body, **{"x-request-id": "r-1"}, **trace)
    gate.wait_reached()
    server.restart()
    ended = wait_line(server, "response ended", request_id="r-1")
    assert (ended["status"], ended["attempts"]) == ("completed", 2)
    assert wait_line(server, "taking over response")["request_id"] == "r-1"
    again = upstream.wait_call(model, 2).headers
    assert again["x-request-id"].startswith("r-1.") and again["traceparent"] == trace["traceparent"]


def test_a_client_that_leaves_shows_in_its_line(serve: Serve, upstream: FakeUpstream) -> None:
    server, gate = serve("--log-format", "json"), Gate()
    with server.client.stream(upstream.model([text("a"), gate, *ending()])) as stream:
        stream.read_delta("a")
    asked = wait_line(server, "request ended", path="/v1/responses")
    gate.open()
    assert (asked["status"], asked["disconnected"]) == (200, True)
    assert wait_line(server, "response ended")["status"] == "completed"


def test_a_socket_is_one_request_and_its_turns_have_ids_of_their_own(serve: Serve, upstream: FakeUpstream) -> None:
    server, model = serve("--log-format", "json"), upstream.model(say("a"))
    with open_websocket(server.port) as socket:
        for _ in range(2):
            socket.turn(model=model, input="x")
    asked = wait_line(server, "request ended", status=101)
    wait_until(lambda: len(read_lines(server, "response ended")) == 2, "two lines")
    turns = [line["request_id"] for line in read_lines(server, "response ended")]
    assert turns == [f"{asked['request_id']}.{number}" for number in (1, 2)]


def test_probes_are_logged_at_debug_only(serve: Serve) -> None:
    server = serve()
    server.client.get("/metrics")
    server.client.get("/v1/models")
    wait_until(lambda: "path=/v1/models" in server.log, "its line")
    assert "path=/metrics" not in server.log and "path=/readyz" not in server.log


def use_every_mode(server: OutliveServer, upstream: FakeUpstream) -> None:
    """Send the canary in every place that holds content or a secret, and let it come back in answers and errors."""
    client, said = server.client, f"say {CANARY}"
    good = upstream.model(say(CANARY, CANARY))
    error: Json = {"error": {"message": CANARY, "type": CANARY}}
    faulty = [upstream.model([Refuse(status, error)]) for status in (400, 401, 422)]
    cut = upstream.model([text(CANARY), CUT])
    tool = {"type": "mcp", "server_label": "outlive"}
    calling = upstream.model([call(0, '{"number": 7}', "call_1", "divide"), *ending("tool_calls")], say(CANARY))
    for more in ({}, {"store": False}, {"instructions": said, "metadata": {"a": CANARY}, "user": CANARY}):
        assert client.create(good, input=said, **more).status == 200
        client.stream(good, input=said, **more).read_all()
    for model in (*faulty, cut):
        client.create(model, input=said)
    client.create(calling, input=said, tools=[tool])
    client.create(good, input=said, temperature=CANARY)
    client.create(good, input=[{"type": CANARY}])
    client.post("/v1/responses", CANARY)
    client.wait_ended(client.submit(good, input=said))
    client.cancel(client.submit(upstream.model([text(CANARY), HANG]), input=said))
    item = {"type": "message", "role": "user", "content": said}
    conversation = client.create_conversation(items=[item], metadata={"a": CANARY})
    client.create(good, input=said, conversation=conversation)
    client.get(f"/v1/conversations/{conversation}?ticket={CANARY}&{CANARY}=1")
    client.get("/v1/models", authorization=f"Bearer {CANARY}", **{"x-request-id": f"{CANARY} "})
    client.post("/v1/chat/completions", {"model": good, "messages": [{"role": "user", "content": said}]})
    client.post("/v1/chat/completions", {"model": faulty[0], "messages": [{"role": "user", "content": said}]})
    with open_websocket(server.port) as socket:
        socket.turn(model=good, input=said)
        socket.turn(model=good, input=said, store=False)
        socket.turn(model=faulty[0], input=said)


@pytest.mark.parametrize("form", ["text", "json"])
def test_nothing_that_callers_or_models_say_is_in_the_log(
    serve: Serve, upstream: FakeUpstream, tmp_path: Path, form: str
) -> None:
    (tmp_path / "my_tools.py").write_text(TOOLS)
    server = serve("--log-level", "debug", "--log-format", form, "--tools", "my_tools")
    use_every_mode(server, upstream)
    server.client.get("/v1/responses?limit=1")  # the last line of all
    wait_until(lambda: server.log.count("request ended") > 25, "a line per request")
    assert server.terminate() == 0
    assert "tool failed" in server.log and "response ended" in server.log
    assert CANARY not in server.log


# -- formats


def make_record(message: str = "it happened", **fields: object) -> logging.LogRecord:
    record = logging.LogRecord("outlive.x", logging.INFO, __file__, 1, message, None, None)
    record.__dict__.update(fields)
    return record


def test_a_value_that_a_client_chose_cannot_forge_a_line_or_a_field() -> None:
    record = make_record(path="/a b\nINFO forged", owner="x=1", model="é", status=200, tool="")
    line = logs.Formatter().format(record)
    assert line.partition("INFO ")[2] == 'it happened owner="x=1" model="é" path="/a b\\nINFO forged" status=200'
    assert json.loads(logs.JsonFormatter().format(record))["path"] == "/a b\nINFO forged"


texts = st.text(st.characters(exclude_categories=["Cs"])) | st.from_regex(r"[!-~]{250,260}", fullmatch=True)
values = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.sampled_from([["a"], {"a": "b c"}])


@hypothesis.given(st.dictionaries(st.sampled_from(logs.FIELDS), values), st.booleans())
def test_a_line_has_each_value_once_cut_and_quoted_if_it_is_no_word(fields: Json, alone: bool) -> None:
    order = fields if alone else {name: fields[name] for name in logs.FIELDS if name in fields}
    expected = ""
    for name, value in order.items():
        shown = str(value)[: logs.MAX_VALUE]
        if value is not None and value != "":
            word = all("!" <= each <= "~" and each not in '="' for each in shown)
            expected += f" {name}={shown if word else msgspec.json.encode(shown).decode()}"
    record = make_record(fields=fields) if alone else make_record(**fields)
    assert logs.Formatter().format(record).partition("it happened")[2] == expected


@pytest.mark.parametrize(("args", "line"), [(("a", 1), "a is 1"), (({"what": "a", "n": 1},), "a is 1"), ((), "whole")])
def test_a_record_takes_its_arguments_like_those_of_logging(args: tuple[object, ...], line: str) -> None:
    form = "whole" if not args else "%(what)s is %(n)d" if len(args) == 1 else "%s is %d"
    record = logs.Record("outlive", logging.INFO, "path", 1, form, args, None)
    assert record.getMessage() == line
    assert set(record.__dict__) >= set(logging.makeLogRecord({}).__dict__)  # for handlers of users


def test_fields_without_a_name_in_the_table_are_left_out_and_long_values_are_cut() -> None:
    line = json.loads(logs.JsonFormatter().format(make_record(content="secret", model="m" * 1000)))
    assert "content" not in line and len(line["model"]) == logs.MAX_VALUE


def find_extras(path: Path) -> set[str]:
    """Return the names of all fields in `extra` of calls of a logger."""
    calls = [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.Call)]
    logging_calls = [each for each in calls if ast.unparse(each.func).partition(".")[0] in ("log", "logger")]
    made = [keyword for each in logging_calls for keyword in each.keywords if keyword.arg == "extra"]
    dicts = [found for keyword in made for found in ast.walk(keyword.value) if isinstance(found, ast.Dict)]
    return {str(key.value) for found in dicts for key in found.keys if isinstance(key, ast.Constant)} - {"fields"}


def test_every_field_that_the_code_logs_is_in_the_table_and_on_the_page() -> None:
    logged = set().union(*(find_extras(path) for path in (ROOT / "src/outlive").rglob("*.py")))
    assert {"response_id", "upstream", "count"} <= logged <= set(logs.FIELDS)
    page = (ROOT / "docs/how-to/observe.md").read_text().partition("## Logs")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page, re.M)
    always = {"time", "level", "logger", "message", "error"}
    assert {name for cell in listed for name in re.findall(r"`(\w+)`", cell)} == set(logs.FIELDS) | always


# -- errors


def fail() -> None:
    try:
        raise KeyError(CANARY)
    except KeyError as error:
        raise ValueError(f"bad: {CANARY}") from error


def format_error(message: str, error: BaseException) -> str:
    record = logging.LogRecord(
        "x", logging.ERROR, __file__, 1, message, None, (type(error), error, error.__traceback__)
    )
    return logs.Formatter().format(record)


def test_a_logged_error_has_its_lines_and_types_but_not_its_messages() -> None:
    with pytest.raises(ValueError, match=CANARY) as caught:
        fail()
    line = format_error("it failed", caught.value)
    assert CANARY not in line
    assert "it failed" in line
    assert line.index("KeyError") < line.index("ValueError")
    assert "in fail" in line


def test_an_unhandled_error_of_a_task_is_logged_without_its_message() -> None:
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(logs.Formatter())
    logs.log.addHandler(handler)
    loop = asyncio.new_event_loop()
    try:
        error = ValueError(CANARY)
        logs.log_stray(loop, {"message": "Task exception was never retrieved", "exception": error, "task": error})
    finally:
        logs.log.removeHandler(handler)
        loop.close()
    assert CANARY not in output.getvalue()
    assert "never retrieved" in output.getvalue()
    assert "ValueError" in output.getvalue()


# -- the writer


def test_an_output_that_takes_nothing_does_not_block_and_dropped_lines_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "MAX_LINES", 50)
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as output, os.fdopen(reading) as pipe:
        writer = logs.LogWriter(output, logs.Formatter())
        monkeypatch.setattr(logs.log, "handlers", [writer])
        for number in range(1000):
            writer.handle(make_record("x" * 4096, count=number))  # returns, though the pipe holds 64 KB
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(pipe), daemon=True)
        reader.start()
        writer.flush()
        writer.handle(make_record("the next"))
        writer.flush()
        output.close()
        reader.join()
    assert "count=0" in lines[0]
    assert "the next" in lines[-2] and "log lines were dropped" in lines[-1]
    dropped = int(lines[-1].rpartition("count=")[2])
    assert dropped + len(lines) - 2 == 1000 and dropped > 800


UNWRITABLE = """
import resource, signal, sys
from outlive.telemetry import logs
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
logs.start_log("info", "text")
logs.log.info("written")
logs.logging.getLogger().handlers[0].flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
logs.log.info("not written")
logs.logging.getLogger().handlers[0].flush()
"""


def test_an_output_that_cannot_be_written_changes_no_exit_status(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        done = subprocess.run([sys.executable, "-c", UNWRITABLE], stderr=log, timeout=60)
    text = (tmp_path / "log").read_text()
    assert (done.returncode, text.count("\n"), text.endswith("written\n")) == (0, 1, True)


def test_a_closed_output_is_no_error() -> None:
    output = io.StringIO()
    output.close()
    writer = logs.LogWriter(output, logs.Formatter())
    writer.handle(make_record())
    writer.flush()
    assert writer.queue.empty()

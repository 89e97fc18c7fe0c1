"""kill -9 at each failpoint of the tool loop, with a count in the tool: a finished call is never repeated."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from outlive.core.toolcalls import INTERRUPTED
from outlive.engine.run.plans import OVER_LIMIT
from tests.core.journals import assert_official_event
from tests.crash.conftest import MakeServer
from tests.support import grammar
from tests.support.checks import check_conversation, check_ended, check_file
from tests.support.http_client import HttpClient, Json, event_of, text_of
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Pause, Script, Step, call, ending, reasoning, say, text
from tests.support.waiting import wait_until

# Two tools that log the start and the end of each call, and wait in between while a file exists.
MODULE = '''
import os
import time
from pathlib import Path

from outlive.tools import ToolContext, tool


def _log(line: str) -> None:
    with open("calls.log", "a") as file:
        file.write(line + "\\n")
        file.flush()
        os.fsync(file.fileno())


def _act(name: str, context: ToolContext) -> str:
    _log(f"{name} starts {context.key} {context.repeated}")
    context.report("on it", progress=1, total=2)
    while Path(f"hold-{name}").exists():
        time.sleep(0.01)
    _log(f"{name} ends {context.key}")
    return f"{name} is done"


@tool
def pay(amount: int, context: ToolContext) -> str:
    """Pay, which must not happen twice."""
    return _act("pay", context)


@tool(idempotent=True)
def look(city: str, context: ToolContext) -> str:
    """Look, which may happen any number of times."""
    return _act("look", context)
'''

SERVER_TOOLS: Json = {"type": "mcp", "server_label": "outlive"}
FAILPOINTS = [
    "before-call-journaled",
    "after-call-journaled",
    "before-output-journaled",
    "after-output-journaled",
    "between-steps",
]


def pay_then_look(body: Json) -> Script:
    """Choose the model's next step by the outputs in the request, as a model does."""
    outputs = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    if not outputs:
        return [text("Let me pay. "), call(0, '{"amount": 5}', "call_a", "pay"), *ending("tool_calls")]
    if len(outputs) == 1:
        return [call(0, '{"city": "Paris"}', "call_b", "look"), *ending("tool_calls")]
    return say("Done: ", outputs[0][:30])


def serve(make_server: MakeServer) -> OutliveServer:
    server = make_server("--tools", "payments")
    server.folder.mkdir(parents=True, exist_ok=True)
    (server.folder / "payments.py").write_text(MODULE)
    return server


def calls_of(server: OutliveServer, name: str) -> list[str]:
    """Return `starts` and `ends` of a tool's calls in order."""
    path = server.folder / "calls.log"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [words[1] for words in lines if words[0] == name]


def keys_of(server: OutliveServer, name: str) -> set[str]:
    lines = [line.split() for line in (server.folder / "calls.log").read_text().splitlines()]
    return {words[2] for words in lines if words[0] == name}


def stream_until_killed(client: HttpClient, model: str, **fields: Any) -> list[bytes]:
    seen: list[bytes] = []
    try:
        with client.stream(model, tools=[SERVER_TOOLS], **fields) as stream:
            stream.read_all()
            assert stream.cut
            seen = stream.frames
    except (OSError, HTTPException):
        pass
    return seen


def check_stream(client: HttpClient, response_id: str, seen: list[bytes]) -> Json:
    """Check an ended response, and that the frames seen and all later ones are one valid stream."""
    body = check_ended(client, response_id, seen)
    events = [event_of(frame) for frame in client.replay(response_id)]
    grammar.check(events)
    for event in events:
        assert_official_event(event)
    return body


def calls_in(body: Json) -> list[tuple[str, str]]:
    return [(item["name"], item["status"]) for item in body["output"] if item["type"] == "mcp_call"]


# The calls in the tool's log after the kill and the restart, and the status of the call, by tool and failpoint. A
# finished call is never repeated; a running one is repeated if its tool is idempotent.
ONCE = ["starts", "ends"]
EXPECTED: dict[tuple[str, str], tuple[list[str], str]] = {
    ("pay", "before-call-journaled"): (ONCE, "completed"),
    ("pay", "after-call-journaled"): ([], "failed"),
    ("pay", "before-output-journaled"): (ONCE, "failed"),
    ("pay", "after-output-journaled"): (ONCE, "completed"),
    ("pay", "between-steps"): (ONCE, "completed"),
    ("look", "before-call-journaled"): (ONCE, "completed"),
    ("look", "after-call-journaled"): (ONCE, "completed"),
    ("look", "before-output-journaled"): (ONCE * 2, "completed"),
    ("look", "after-output-journaled"): (ONCE, "completed"),
    ("look", "between-steps"): (ONCE, "completed"),
}


@pytest.mark.parametrize("point", FAILPOINTS)
@pytest.mark.parametrize("tool", ["pay", "look"])
def test_a_kill_repeats_only_idempotent_calls_that_were_running(
    tool: str, point: str, upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = serve(make_server).start(OUTLIVE_KILL_AT=f"{point}:{1 if tool == 'pay' else 2}")
    client = server.client
    conversation = client.create_conversation()
    seen = stream_until_killed(client, upstream.model(pay_then_look), conversation=conversation)
    assert server.wait_exit() == -9

    server.start()
    response_id = event_of(seen[0])["response"]["id"]
    body = check_stream(client, response_id, seen)
    if (tool, point, body["status"]) == ("pay", "before-call-journaled", "incomplete"):
        # The text before the call was visible and its end not durable: it cannot be continued (D9), nothing was paid.
        assert calls_of(server, tool) == [] and calls_in(body) == []
        return
    assert body["status"] == "completed"
    made, end = EXPECTED[tool, point]
    other = "look" if tool == "pay" else "pay"
    assert calls_of(server, tool) == made
    assert calls_of(server, other) == ONCE
    ends = {tool: end, other: "completed"}
    assert calls_in(body) == [("pay", ends["pay"]), ("look", ends["look"])]
    if made:
        assert len(keys_of(server, tool)) == 1, "a repeated call has the same key"
    check_conversation(client, conversation, [body])
    server.kill()
    check_file(server.database)


def pay_then_hang(body: Json) -> Script:
    """Ask for a call, and never end the answer that follows it."""
    if any(message["role"] == "tool" for message in body["messages"]):
        return [text("It is"), HANG]
    return [call(0, '{"amount": 5}', "call_a", "pay"), *ending("tool_calls")]


def test_a_response_that_a_kill_interrupts_reports_the_usage_of_its_finished_steps(
    upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = serve(make_server).start()
    with server.client.stream(upstream.model(pay_then_hang), tools=[SERVER_TOOLS]) as stream:
        stream.read_until(lambda event: event.get("delta") == "It is")
        server.kill()
        server.start()
        body = check_stream(server.client, stream.id, stream.frames)
    assert (body["status"], calls_in(body)) == ("incomplete", [("pay", "completed")])
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (5, 2)


def two_calls_at_once(body: Json) -> Script:
    """Ask for two calls in one step, and answer once there are outputs."""
    if any(message["role"] == "tool" for message in body["messages"]):
        return say("Done.")
    calls = [call(n, '{"city": "Paris"}', f"call_{n}", "look") for n in range(2)]
    return [*calls, *ending("tool_calls")]


@pytest.mark.parametrize("point", FAILPOINTS)
def test_the_model_reads_of_an_ignored_call_after_a_kill(
    point: str, upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = serve(make_server).start(OUTLIVE_KILL_AT=f"{point}:1")
    model = upstream.model(two_calls_at_once)
    seen = stream_until_killed(server.client, model, max_tool_calls=1)
    assert server.wait_exit() == -9

    server.start()
    body = check_stream(server.client, event_of(seen[0])["response"]["id"], seen)
    assert (body["status"], calls_in(body)) == ("completed", [("look", "completed")])
    outputs = [each["content"] for each in upstream.bodies(model)[-1]["messages"] if each["role"] == "tool"]
    assert [OVER_LIMIT in output for output in outputs] == [False, True]


@pytest.mark.parametrize("tool", ["pay", "look"])
def test_a_kill_during_a_call_repeats_it_only_if_it_is_idempotent(
    tool: str, upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = serve(make_server).start()
    client = server.client
    (server.folder / f"hold-{tool}").touch()
    model = upstream.model(pay_then_look)
    with client.stream(model, tools=[SERVER_TOOLS]) as stream:
        stream.read_until(lambda event: event["type"] == "outlive:tool.progress" and _is_of(stream, event, tool))
        # Finished calls are visible with their output while the next one runs.
        shown = client.retrieve(stream.id)["output"]
        assert [item["status"] for item in shown if item["type"] == "mcp_call"][-1] == "calling"
        if tool == "look":
            assert next(item["output"] for item in shown if item["type"] == "mcp_call") == "pay is done"
        server.kill()
        (server.folder / f"hold-{tool}").unlink()
        server.start()
        body = check_stream(client, stream.id, stream.frames)
    if tool == "pay":
        assert calls_of(server, "pay") == ["starts"]
        assert calls_in(body) == [("pay", "failed"), ("look", "completed")]
        failed = next(item for item in body["output"] if item["type"] == "mcp_call")
        assert failed["error"]["content"][0]["text"] == INTERRUPTED
        messages = upstream.bodies(model)[-1]["messages"]
        assert any(INTERRUPTED in str(message["content"]) for message in messages), "the model gets the reason"
    else:
        assert calls_of(server, "look") == ["starts", *ONCE]
        assert calls_in(body) == [("pay", "completed"), ("look", "completed")]
        assert calls_of(server, "pay") == ONCE
    assert body["status"] == "completed"


def _is_of(stream: Any, event: Json, tool: str) -> bool:
    names = {each["item"]["id"]: each["item"].get("name") for each in stream.events if "item" in each}
    return names.get(event["item_id"]) == tool


def test_a_call_that_kills_its_server_three_times_fails(upstream: FakeUpstream, make_server: MakeServer) -> None:
    server = serve(make_server).start(OUTLIVE_KILL_AT="before-output-journaled:2")
    client = server.client
    seen = stream_until_killed(client, upstream.model(pay_then_look))
    assert server.wait_exit() == -9
    for _ in range(2):
        server.launch(OUTLIVE_KILL_AT="before-output-journaled")
        assert server.wait_exit() == -9
    server.start()
    body = check_stream(client, event_of(seen[0])["response"]["id"], seen)
    assert calls_in(body) == [("pay", "completed"), ("look", "failed")]
    assert body["status"] == "completed"
    assert calls_of(server, "look") == ONCE * 3


def test_concurrent_calls_are_each_recovered_from_their_own_state(
    upstream: FakeUpstream, make_server: MakeServer
) -> None:
    both: list[Step] = [
        call(0, '{"amount": 1}', "call_a", "pay"),
        call(1, '{"city": "Rome"}', "call_b", "look"),
        *ending("tool_calls"),
    ]
    server = serve(make_server).start()
    client = server.client
    for name in ("hold-pay", "hold-look"):
        (server.folder / name).touch()
    with client.stream(upstream.model(both, say("Fine.")), tools=[SERVER_TOOLS]) as stream:
        wait_until(lambda: calls_of(server, "pay") == calls_of(server, "look") == ["starts"], "both calls have started")
        (server.folder / "hold-pay").unlink()
        stream.read_until(lambda event: event["type"] == "response.mcp_call.completed")
        server.kill()
        (server.folder / "hold-look").unlink()
        server.start()
        body = check_stream(client, stream.id, stream.frames)
    assert calls_of(server, "pay") == ONCE
    assert calls_of(server, "look") == ["starts", *ONCE]
    assert calls_in(body) == [("pay", "completed"), ("look", "completed")]


def test_a_cancel_during_a_call_ends_the_response(upstream: FakeUpstream, make_server: MakeServer) -> None:
    server = serve(make_server).start()
    client = server.client
    (server.folder / "hold-pay").touch()
    conversation = client.create_conversation()
    response_id = client.submit(upstream.model(pay_then_look), tools=[SERVER_TOOLS], conversation=conversation)
    wait_until(lambda: calls_of(server, "pay") == ["starts"], "the call has started")
    cancelled = client.cancel(response_id).json()
    assert cancelled["status"] == "cancelled"
    body = check_stream(client, response_id, [])
    assert calls_in(body) == [("pay", "incomplete")]
    (server.folder / "hold-pay").unlink()
    # A call without a known outcome is left out of the conversation, which can be continued.
    following = client.create(
        upstream.model(say("Yes.")), input="Still there?", tools=[SERVER_TOOLS], conversation=conversation
    ).json()
    assert (following["status"], text_of(following)) == ("completed", "Yes.")
    assert [item["type"] for item in client.list_items(conversation)] == ["message"] * 4


def test_a_shutdown_releases_runs_with_tools_after_the_grace_period(
    upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = serve(make_server)
    server.flags += ["--grace-seconds", "0.5"]
    server.start()
    client = server.client
    for name in ("hold-pay", "hold-look"):
        (server.folder / name).touch()
    with client.stream(upstream.model(pay_then_look), tools=[SERVER_TOOLS]) as stream:
        wait_until(lambda: calls_of(server, "pay") == ["starts"], "the call has started")
        # After the grace period the call is abandoned, and the response released.
        assert server.terminate() == 0
        stream.read_all()
        (server.folder / "hold-look").unlink()
        server.start()
        body = check_stream(client, stream.id, stream.frames)
    assert body["status"] == "completed"
    assert calls_in(body) == [("pay", "failed"), ("look", "completed")]
    assert calls_of(server, "pay") == ["starts"]


def test_a_shutdown_waits_for_a_short_call(upstream: FakeUpstream, make_server: MakeServer) -> None:
    server = serve(make_server).start()
    client = server.client
    (server.folder / "hold-pay").touch()
    with client.stream(upstream.model(pay_then_look), tools=[SERVER_TOOLS]) as stream:
        wait_until(lambda: calls_of(server, "pay") == ["starts"], "the call has started")
        server.send_signal(signal.SIGTERM)
        (server.folder / "hold-pay").unlink()
        assert server.wait_exit() == 0
        stream.read_all()
        server.start()
        body = check_stream(client, stream.id, stream.frames)
    assert calls_of(server, "pay") == ONCE
    assert calls_in(body) == [("pay", "completed"), ("look", "completed")]


def test_reasoning_interrupted_between_calls_is_generated_again(
    upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = serve(make_server).start()
    client = server.client
    first: list[Step] = [call(0, '{"amount": 5}', "call_a", "pay"), *ending("tool_calls")]
    model = upstream.model(first, [reasoning("Hmm, "), HANG], say("Paid."))
    with client.stream(model, tools=[SERVER_TOOLS]) as stream:
        stream.read_until(lambda event: event["type"] == "response.reasoning_text.delta")
        server.restart()
        body = check_stream(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "Paid.")
    assert [item["type"] for item in body["output"]] == ["mcp_call", "reasoning", "message"]
    assert calls_of(server, "pay") == ONCE


def test_secrets_of_tools_are_in_no_file_during_and_after_the_run(
    upstream: FakeUpstream, make_server: MakeServer
) -> None:
    """Secrets are sealed with a key beside the database; neither file contains them in plain text."""
    server = serve(make_server).start()
    client = server.client
    (server.folder / "hold-pay").touch()
    entry = {**SERVER_TOOLS, "headers": {"x-key": "canary-4711"}, "authorization": "canary-4712"}
    model = upstream.model(pay_then_look)
    response_id = client.submit(model, tools=[entry])
    wait_until(lambda: calls_of(server, "pay") == ["starts"], "the call has started")
    assert _find(server.folder, b"canary") == []
    server.kill()
    assert _find(server.folder, b"canary") == []
    (server.folder / "hold-pay").unlink()
    server.start()
    body = check_stream(client, response_id, [])
    assert "canary" not in str(body)
    assert "canary" not in str(client.replay(response_id))
    assert _find(server.folder, b"canary") == []
    assert "canary" not in str([call.body for call in upstream.calls(model)])
    assert (server.folder / "outlive.db.key").stat().st_mode & 0o777 == 0o600


def pay_and_look_and_pay(body: Json) -> Script:
    outputs = [message for message in body["messages"] if message["role"] == "tool"]
    if len(outputs) >= 4:
        return [Pause(0.01), *say("Done.")]
    pay = call(0, '{"amount": 5}', "call_a", "pay")
    both = [pay, call(1, '{"city": "Rome"}', "call_b", "look")]
    return [Pause(0.01), *(both if len(outputs) == 1 else [pay]), *ending("tool_calls")]


def test_kills_at_random_moments_repeat_no_finished_call(upstream: FakeUpstream, make_server: MakeServer) -> None:
    chance = random.Random(4711)
    server = serve(make_server).start()
    client = server.client
    model = upstream.model(pay_and_look_and_pay)
    ids = [client.submit(model, tools=[SERVER_TOOLS]) for _ in range(12)]
    for _ in range(6):
        time.sleep(chance.uniform(0.02, 0.25))
        server.restart()
        ids += [client.submit(model, tools=[SERVER_TOOLS]) for _ in range(4)]
    counts: dict[tuple[str, str], list[str]] = {}
    bodies = [check_stream(client, response_id, []) for response_id in ids]
    for line in (server.folder / "calls.log").read_text().splitlines():
        name, what, key, *_ = line.split()
        counts.setdefault((name, key), []).append(what)
    statuses: Counter[tuple[str, str]] = Counter()
    for body in bodies:
        assert body["status"] == "completed", body["incomplete_details"]
        for item in body["output"]:
            if item["type"] == "mcp_call":
                statuses[item["name"], item["status"]] += 1
                made = counts.pop((item["name"], f"{body['id']}/{item['id']}"), [])
                check_count(item, made)
    assert counts == {}, "every call belongs to an item of a response"
    assert statuses["pay", "completed"] > 50


def check_count(item: Json, made: list[str]) -> None:
    if item["name"] == "pay":
        assert made == ONCE if item["status"] == "completed" else made in ([], ["starts"], ONCE)
    else:
        assert item["status"] == "completed"
        assert made[-2:] == ONCE and made.count("starts") <= 3


def test_a_call_and_the_embedded_models_text_survive_kills(tmp_path: Path) -> None:
    """The embedded model is too small to call tools by itself, so that the request approves a call."""
    server = OutliveServer(tmp_path / "server", None, "--tools", "payments")
    server.folder.mkdir()
    (server.folder / "payments.py").write_text(MODULE)
    asked = {"id": "mcpr_1", "type": "mcp_approval_request", "server_label": "outlive", "name": "look"}
    approved = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    # Long enough to be killed in the middle: at temperature 0 the answer is always the same.
    question = {"role": "user", "content": "Write a poem of twenty lines about Paris."}
    items = [question, {**asked, "arguments": '{"city": "Paris"}'}, approved]
    try:
        server.start()
        client = server.client
        (server.folder / "hold-look").touch()
        with client.stream("demo", input=items, tools=[SERVER_TOOLS], max_output_tokens=100, temperature=0) as stream:
            stream.read_type("outlive:tool.progress")
            server.kill()
            (server.folder / "hold-look").unlink()
            seen = stream.read_all().frames
        server.start()
        with client.follow(stream.id, after=stream.last_number) as again:
            for _ in range(10):
                again.read_type("response.output_text.delta")
            server.kill()
            seen += again.read_all().frames
        server.start()
        body = check_stream(client, stream.id, seen)
    finally:
        server.kill()
    assert calls_of(server, "look") == ["starts", *ONCE]
    assert [item["type"] for item in body["output"]] == ["mcp_call", "message"]
    assert body["output"][0]["output"] == "look is done"
    assert (body["incomplete_details"] or {}).get("reason") in (None, "max_output_tokens")
    assert len(text_of(body)) > 20
    assert body["outlive"]["attempts"] == 3


def _find(folder: Path, needle: bytes) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_file() and needle in path.read_bytes()]

"""outlive.js in Node: single requests, errors, polling, tokens, and the fold beside the server's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from outlive.client import Token, resume, stream
from tests.client.stub import DROP, Stub, event, refuse, response
from tests.client.stub import Reply as StubReply
from tests.client.test_cuts import SCRIPT, replay
from tests.js.test_following import STREAM
from tests.support.javascript import JavaScript, JavaScriptError
from tests.support.proxy import Cut, DropAnswer, Proxy
from tests.support.server import OutliveServer, free_port
from tests.support.upstream import FakeUpstream, Gate, call, ending, reasoning, refusal, say, text

Json = dict[str, Any]

FOLLOW = """
    const outlive = new library.Outlive({ baseURL, retry: { first: 5, longest: 100 } });
    const events = [];
    for await (const event of outlive.follow(target, options)) events.push(event);
    return events;
"""
CLIENT = "const outlive = new library.Outlive({ baseURL, retry: { first: 5, longest: 100 } });"


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as running:
        yield running


# -- positions


def test_a_token_of_python_is_followed_in_javascript_and_the_reverse(
    node: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
        with stream(client, model=upstream.model(SCRIPT), input="Hi") as events:
            first = [next(events).to_dict(mode="json") for _ in range(20)]
            token = str(events.token)
        rest = node.run(FOLLOW, baseURL=server.base_url, target=token, options={})
        whole = replay(server, Token.of(token).response_id)
        assert first + rest == whole

        begun = node.start(STREAM, baseURL=server.base_url, model=upstream.model(SCRIPT), retry={}, body={})
        token = begun.next_emitted()["token"]
        position = Token.of(token)
        continued = [event.to_dict(mode="json") for event in resume(client, token)]
        assert position.cursor is not None and not position.ended
        assert continued == begun.result()["events"][position.cursor + 1 :]
        ended = Token.of(begun.result()["token"])
        assert ended.ended and list(resume(client, ended)) == []


@pytest.mark.parametrize("token", [Token("resp_1"), Token("resp_1", 7), Token("résp 😀", 0, True)], ids=str)
def test_tokens_of_both_languages_hold_the_same(node: JavaScript, token: Token) -> None:
    position = node.run("return library.parseToken(token)", token=str(token))
    assert position == {"id": token.response_id, "after": token.cursor, "ended": token.ended}
    assert Token.parse(node.run("return library.token(position)", position=position)) == token


@pytest.mark.parametrize("text", ["resp_1", "ot1_", "ot1_AAAA", "ot1_!", "ot2_nvwqT1sicmVzcF8xIiw1LDBd"])
def test_a_damaged_token_is_refused(node: JavaScript, text: str) -> None:
    with pytest.raises(JavaScriptError, match="TypeError"):
        node.run("return library.parseToken(text)", text=text)


def test_following_after_the_last_event_ends_without_events(
    node: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    made = server.client.create(upstream.model()).json()
    last = len(replay(server, made["id"])) - 1
    assert node.run(FOLLOW, baseURL=server.base_url, target=made["id"], options={"after": last}) == []
    assert len(node.run(FOLLOW, baseURL=server.base_url, target=made["id"], options={"after": last - 3})) == 3


# -- the fold


def test_the_fold_of_a_stream_equals_the_servers_own_at_every_stop(
    node: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    gates = [Gate() for _ in range(4)]
    model = upstream.model(
        [
            *(reasoning("Hmm, "), gates[0], reasoning("so."), text("I look"), gates[1], text(" it up. ")),
            *(call(0, '{"a', "call_1", "look"), gates[2], call(0, '": 1}'), call(1, "{}", "call_2", "look"), gates[3]),
            *ending("tool_calls"),
        ]
    )
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}]
    response_id = server.client.submit(model, tools=tools)
    body = """
        const outlive = new library.Outlive({ baseURL });
        const fold = new library.Fold();
        for await (const event of outlive.follow(id)) {
          fold.add(event);
          emit({ delta: event.delta, response: fold.response });
        }
        return fold.response;
    """
    following = node.start(body, baseURL=server.base_url, id=response_id)
    for gate, last in zip(gates, ("Hmm, ", "I look", '{"a', "{}"), strict=True):
        while (folded := following.next_emitted()).get("delta") != last:
            pass
        assert folded["response"] == server.client.retrieve(response_id)
        gate.open()
    assert following.result() == server.client.wait_ended(response_id)


def test_the_fold_keeps_refusals_and_leaves_events_unchanged(
    node: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    made = server.client.create(upstream.model([refusal("No"), refusal(", sorry."), *ending()])).json()
    body = """
        const fold = new library.Fold();
        const copies = structuredClone(events);
        for (const event of events) fold.add(event);
        return [JSON.stringify(copies) === JSON.stringify(events), fold.response, fold.status, fold.ended];
    """
    unchanged, folded, status, ended = node.run(body, events=replay(server, made["id"])[:-1])
    assert unchanged and status == "in_progress" and not ended
    assert folded["output"] == made["output"]


def test_adding_a_late_event_costs_what_an_early_one_costs(node: JavaScript) -> None:
    body = """
        const fold = new library.Fold();
        fold.add({ type: "response.output_item.added", output_index: 0, item: { type: "message", content: [] } });
        const delta = { type: "response.output_text.delta", output_index: 0, content_index: 0, delta: "word " };
        const measure = () => {
          const began = performance.now();
          for (let count = 0; count < 20_000; count += 1) fold.add(delta);
          return performance.now() - began;
        };
        measure(); // compiles
        const early = measure();
        for (let round = 0; round < 20; round += 1) measure();
        return [early, Math.min(measure(), measure(), measure()), fold.text.length];
    """
    early, late, length = node.run(body)
    assert length == 25 * 20_000 * 5
    assert late < early * 10 + 20


# -- errors and retries


def test_an_error_has_the_fields_of_the_envelope(node: JavaScript, server: OutliveServer) -> None:
    with pytest.raises(JavaScriptError) as raised:
        node.run(CLIENT + "return outlive.retrieve(id)", baseURL=server.base_url, id="resp_none")
    assert raised.value.fields["status"] == 404 and raised.value.fields["name"] == "OutliveError"
    with pytest.raises(JavaScriptError) as raised:
        node.run(CLIENT + "return outlive.list(query)", baseURL=server.base_url, query={"limit": 1000})
    assert (raised.value.fields["status"], raised.value.fields["param"]) == (400, "limit")
    with pytest.raises(JavaScriptError) as raised:
        node.run(FOLLOW, baseURL=server.base_url, target="resp_none", options={})
    assert raised.value.fields["status"] == 404 and raised.value.fields["requestId"]


def test_temporary_errors_of_a_stream_are_retried(node: JavaScript, stub: Stub) -> None:
    events = [event(0, "response.created"), event(1), event(2), event(3, "response.completed")]
    stub.script(
        *(refuse(500), refuse(503), refuse(429, retry_after="0.2"), StubReply(events=events[:2])),
        *(refuse(502), DROP, StubReply(events=events[1:3]), refuse(404), StubReply(events=events)),
    )
    assert node.run(FOLLOW, baseURL=stub.base_url, target="resp_1", options={}) == events
    assert stub.requests[4] == "GET /responses/resp_1?stream=true&starting_after=1"
    assert stub.requests[8] == "GET /responses/resp_1?stream=true&starting_after=2"


def test_a_missing_event_is_requested_again(node: JavaScript, stub: Stub) -> None:
    events = [event(0, "response.created"), event(1), event(2), event(3, "response.completed")]
    stub.script(StubReply(events=[events[0], events[2]]), StubReply(events=events[1:]))
    assert node.run(FOLLOW, baseURL=stub.base_url, target="resp_1", options={}) == events


@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_final_error_of_a_stream_is_thrown_at_once(node: JavaScript, stub: Stub, status: int) -> None:
    stub.script(refuse(status))
    with pytest.raises(JavaScriptError) as raised:
        node.run(FOLLOW, baseURL=stub.base_url, target="resp_1", options={})
    assert raised.value.fields["status"] == status
    assert len(stub.asked) == 1


def test_a_post_is_repeated_under_its_key_a_few_times_at_most(node: JavaScript, stub: Stub) -> None:
    stub.script(refuse(429), refuse(429), refuse(429))
    with pytest.raises(JavaScriptError) as raised:
        node.run(CLIENT + "return outlive.create({ input: 'Hi' })", baseURL=stub.base_url)
    assert raised.value.fields["status"] == 429
    keys = {headers["idempotency-key"] for _, _, headers in stub.asked}
    assert len(stub.asked) == 3 and len(keys) == 1
    stub.script(refuse(409, x_should_retry="false"))
    with pytest.raises(JavaScriptError):
        node.run(CLIENT + "return outlive.create({ input: 'Hi' })", baseURL=stub.base_url)
    assert len(stub.asked) == 4


def test_a_first_request_without_a_server_fails_soon(node: JavaScript) -> None:
    with pytest.raises(JavaScriptError) as raised:
        node.run(CLIENT + "return outlive.create({})", baseURL=f"http://127.0.0.1:{free_port()}/v1")
    assert (raised.value.fields["status"], raised.value.fields["code"]) == (0, "connection_lost")


def test_a_refused_key_is_asked_for_again_once(node: JavaScript, stub: Stub) -> None:
    body = """
        const asked = [];
        const apiKey = (refused) => { asked.push(refused); return `key-${asked.length}`; };
        const outlive = new library.Outlive({ baseURL, apiKey });
        const failed = await outlive.retrieve("resp_1").then(() => null, (error) => error.status);
        return [asked, failed];
    """
    stub.script(refuse(401), StubReply(response("completed")))
    assert node.run(body, baseURL=stub.base_url) == [[False, True], None]
    assert [headers["authorization"] for _, _, headers in stub.asked] == ["Bearer key-1", "Bearer key-2"]
    stub.script(refuse(401), refuse(401))
    assert node.run(body, baseURL=stub.base_url) == [[False, True], 401]


# -- creating, polling, listing


def test_a_create_with_a_lost_answer_is_repeated_without_a_second_model_call(
    node: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    model = upstream.model(say("Well."))
    body = CLIENT + "return outlive.create({ model, input: 'Hi' })"
    with Proxy(server.port, DropAnswer(), Cut(0, 40, "close")) as proxy:
        made = node.run(body, baseURL=proxy.base_url, model=model)
    assert made == server.client.retrieve(made["id"])
    assert len(upstream.calls(model)) == 1


def test_polling_survives_a_killed_and_restarted_server(
    node: JavaScript, killable: OutliveServer, upstream: FakeUpstream
) -> None:
    gate = Gate()
    model = upstream.model([gate], say("All ", "is ", "well."))
    body = CLIENT + (
        "const made = await outlive.create({ model, input: 'Hi', background: true });"
        "emit(made.id); return outlive.poll(made.id)"
    )
    polling = node.start(body, baseURL=killable.base_url, model=model)
    gate.wait_reached()
    polling.next_emitted()
    killable.restart()
    assert polling.result()["output"][0]["content"][0]["text"] == "All is well."


def test_running_responses_of_a_conversation_are_found_and_cancelled(
    node: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    gate = Gate()
    body = """
        const outlive = new library.Outlive({ baseURL });
        const conversation = await outlive.conversations.create({ metadata: { a: "b" } });
        const made = await outlive.create({ model, input: "Hi", conversation: conversation.id, background: true });
        const running = await outlive.running(conversation.id);
        const cancelled = await outlive.cancel(made.id);
        const left = await outlive.running(conversation.id);
        const items = await outlive.conversations.items(conversation.id, { order: "asc" });
        const listed = await outlive.list({ conversation: conversation.id, status: ["cancelled", "failed"] });
        await outlive.delete(made.id);
        await outlive.conversations.delete(conversation.id);
        const gone = await outlive.conversations.retrieve(conversation.id).catch((error) => error.status);
        return { made, running, cancelled, left, items, listed, gone };
    """
    got = node.run(body, baseURL=server.base_url, model=upstream.model([text("Once "), gate, *ending()]))
    gate.open()
    assert [each["id"] for each in got["running"]] == [got["made"]["id"]] and got["left"] == []
    assert got["cancelled"]["status"] == "cancelled" and got["gone"] == 404
    assert got["items"]["data"][0]["role"] == "user"
    assert [each["id"] for each in got["listed"]["data"]] == [got["made"]["id"]]


def test_an_aborted_stream_ends_and_leaves_the_run_alone(
    node: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    gate = Gate()
    body = """
        const outlive = new library.Outlive({ baseURL });
        const controller = new AbortController();
        const stream = outlive.stream({ model, input: "Hi" }, { signal: controller.signal });
        try {
          for await (const event of stream) if (event.delta) controller.abort();
        } catch (error) {
          return [error.name, stream.id];
        }
    """
    name, response_id = node.run(body, baseURL=server.base_url, model=upstream.model([text("On"), gate, *ending()]))
    assert name == "AbortError"
    assert server.client.retrieve(response_id)["status"] == "in_progress"
    threading.Timer(0.1, gate.open).start()
    polled = node.run(CLIENT + "return outlive.poll(id)", baseURL=server.base_url, id=response_id)
    assert polled["status"] == "completed"

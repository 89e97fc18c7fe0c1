"""Chains of responses: the history that a parent passes on, and which responses are refused as parents (D22)."""

from __future__ import annotations

from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.support.http_client import HttpClient
from tests.support.upstream import HANG, FakeUpstream, Gate, Refuse, ending, say, text
from tests.wire import events


def contents(upstream: FakeUpstream, model: str, number: int = 0) -> list[str]:
    return [message["content"] for message in upstream.calls(model)[number].messages]


def answer(client: OpenAI, upstream: FakeUpstream, question: str, said: str, parent: str | None = None) -> str:
    made = client.responses.create(model=upstream.model(say(said)), input=question, previous_response_id=parent)
    assert made.previous_response_id == parent
    return made.id


def test_a_chain_sends_all_earlier_turns(client: OpenAI, upstream: FakeUpstream) -> None:
    parent = None
    for n in range(6):
        parent = answer(client, upstream, f"q{n}", f"a{n}", parent)
    model = upstream.model()
    client.responses.create(model=model, input="last", previous_response_id=parent)
    expected = [words for n in range(6) for words in (f"q{n}", f"a{n}")]
    assert contents(upstream, model) == [*expected, "last"]


def test_a_chain_forks_anywhere_with_a_history_for_each_branch(client: OpenAI, upstream: FakeUpstream) -> None:
    root = answer(client, upstream, "q0", "a0")
    left = answer(client, upstream, "left", "left!", root)
    right = answer(client, upstream, "right", "right!", root)
    deeper = answer(client, upstream, "deeper", "deeper!", right)
    for parent, past in (
        (root, ["q0", "a0"]),
        (left, ["q0", "a0", "left", "left!"]),
        (right, ["q0", "a0", "right", "right!"]),
        (deeper, ["q0", "a0", "right", "right!", "deeper", "deeper!"]),
    ):
        model = upstream.model()
        client.responses.create(model=model, input="?", previous_response_id=parent)
        assert contents(upstream, model) == [*past, "?"]


def test_one_parent_has_many_concurrent_children(http: HttpClient, client: OpenAI, upstream: FakeUpstream) -> None:
    root = answer(client, upstream, "q", "a")
    gate = Gate()
    model = upstream.model([gate, *say("child")])
    streams = [http.stream(model=model, input=f"c{n}", previous_response_id=root) for n in range(5)]
    gate.open()
    for stream in streams:
        stream.read_through("response.completed")
    asked = sorted(tuple(contents(upstream, model, n)) for n in range(5))
    assert asked == [("q", "a", f"c{n}") for n in range(5)]


def test_a_chain_from_a_conversation_leaves_it_unchanged(
    http: HttpClient, client: OpenAI, upstream: FakeUpstream
) -> None:
    conversation = client.conversations.create().id
    first = client.responses.create(model=upstream.model(say("a")), input="q", conversation=conversation)
    client.responses.create(model=upstream.model(say("later")), input="later?", conversation=conversation)
    model = upstream.model(say("aside"))
    aside = client.responses.create(model=model, input="aside?", previous_response_id=first.id)
    assert contents(upstream, model) == ["q", "a", "aside?"]
    assert aside.conversation is None
    assert [words for _, words in http.list_messages(conversation)] == ["q", "a", "later?", "later"]


@pytest.mark.parametrize("background", [False, True])
def test_a_running_response_is_refused_as_a_parent(http: HttpClient, upstream: FakeUpstream, background: bool) -> None:
    gate = Gate()
    stream = http.stream(model=upstream.model([gate, *say("a")]), input="q", background=background)
    running = events.read(stream.read_frame())["response"]["id"]
    refused = http.create(model=upstream.model(), input="?", previous_response_id=running)
    assert refused.status == 400
    assert (refused.error["code"], refused.error["param"]) == ("response_not_finished", "previous_response_id")
    gate.open()
    stream.read_through("response.completed")
    assert http.create(model=upstream.model(), input="?", previous_response_id=running).status == 200


def test_a_failed_response_is_refused_as_a_parent(http: HttpClient, client: OpenAI, upstream: FakeUpstream) -> None:
    made = client.responses.create(model=upstream.model([Refuse(400)]), input="q", background=True)
    client.responses.retrieve(made.id, extra_query={"wait": 10})
    refused = http.create(model=upstream.model(), input="?", previous_response_id=made.id)
    assert refused.status == 400
    assert refused.error["param"] == "previous_response_id"


def test_an_incomplete_response_is_accepted_as_a_parent(client: OpenAI, upstream: FakeUpstream) -> None:
    first = client.responses.create(model=upstream.model([text("Once "), *ending("length")]), input="q")
    model = upstream.model()
    client.responses.create(model=model, input="Go on.", previous_response_id=first.id)
    assert contents(upstream, model) == ["q", "Once ", "Go on."]


def test_a_cancelled_response_is_accepted_as_a_parent(http: HttpClient, upstream: FakeUpstream) -> None:
    stream = http.stream(model=upstream.model([text("Once "), HANG]), input="q")
    response_id = events.read(stream.read_through("response.output_text.delta")[0])["response"]["id"]
    http.post(f"/v1/responses/{response_id}/cancel")
    model = upstream.model()
    assert http.create(model=model, input="Go on.", previous_response_id=response_id).status == 200
    assert contents(upstream, model) == ["q", "Once ", "Go on."]


@pytest.mark.parametrize("store", [True, False])
def test_an_unknown_parent_is_refused(client: OpenAI, upstream: FakeUpstream, store: bool) -> None:
    model = upstream.model()
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=model, input="?", previous_response_id="resp_unknown", store=store)
    assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
    assert upstream.calls(model) == []


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_deleted_ancestor_is_refused_instead_of_shortening_the_context(
    client: OpenAI, upstream: FakeUpstream, victim: int
) -> None:
    chain: list[str] = []
    for n in range(3):
        chain.append(answer(client, upstream, f"q{n}", f"a{n}", chain[-1] if chain else None))
    fork = answer(client, upstream, "fork", "forked", chain[0])
    client.responses.delete(chain[victim])
    with pytest.raises(NotFoundError):
        client.responses.retrieve(chain[victim])
    for n, parent in enumerate([*chain, fork]):
        model = upstream.model()
        depends = (n if parent != fork else 0) >= victim if parent != fork else victim == 0
        if depends:
            with pytest.raises(BadRequestError) as refused:
                client.responses.create(model=model, input="?", previous_response_id=parent)
            assert refused.value.code == "previous_response_not_found"
            assert upstream.calls(model) == []
        else:
            client.responses.create(model=model, input="?", previous_response_id=parent)
            assert contents(upstream, model)[-1] == "?"
    # The other responses can still be read.
    for left in chain:
        if left != chain[victim]:
            assert client.responses.retrieve(left).status == "completed"


def test_input_items_lists_only_the_responses_own_input(client: OpenAI, upstream: FakeUpstream) -> None:
    first = answer(client, upstream, "q0", "a0")
    second = client.responses.create(
        model=upstream.model(),
        previous_response_id=first,
        input=[{"role": "user", "content": str(n)} for n in range(25)],
    )
    for order, expected in (("asc", range(25)), ("desc", range(24, -1, -1))):
        listed: Any = client.responses.input_items.list(second.id, order=order, limit=10)  # type: ignore[arg-type]
        assert [item.content[0].text for item in listed] == [str(n) for n in expected]

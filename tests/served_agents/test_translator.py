"""An agent's chunks become events that are well formed and known to the official types."""

from __future__ import annotations

from outlive.core.events import AnyDraft, Json, number, read_frame
from outlive.core.fold import Fold
from outlive.core.recovery import OpenText
from outlive.core.requests.checks import Limits
from outlive.core.requests.create import parse_create
from outlive.ports.backend import Ending, ModelCall
from outlive.served_agents.translator import AgentTranslator, encode
from tests.core.journals import assert_official_event, opening
from tests.support import grammar
from tests.support.scripting import CountingIds

CHUNKS = [
    encode("reasoning", "Let me see. "),
    encode("reasoning", "Yes."),
    encode("text", "Looking. "),
    encode("begin_call", "mcp_a", "find", '{"q":1}'),
    encode("begin_call", "mcp_b", "find", ""),
    encode("finish_call", "mcp_b", "two", None),
    encode("finish_call", "mcp_a", None, {"type": "mcp_tool_execution_error", "content": []}),
    encode("text", "One message."),
    encode("end_item"),
    encode("text", "Another."),
    encode("usage", {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
    encode("usage", {"input_tokens": 10, "output_tokens": 20, "total_tokens": 30}),
]


def translate(chunks: list[bytes], resume: OpenText | None = None, first: int = 0) -> tuple[list[Json], Fold, Ending]:
    ids = CountingIds()
    request = parse_create({"model": "clerk", "input": "Hi"}, ids, Limits())
    translator = AgentTranslator(ModelCall("clerk", request, [], resume, first), ids, "clerk")
    drafts: list[AnyDraft] = [draft for chunk in chunks for draft in translator.feed(chunk)]
    last, ending = translator.end()
    drafts += last
    begun = opening(request=request)
    events = [read_frame(frame) for frame in number([*begun, *drafts], -1)]
    fold = Fold()
    fold.replay(b"".join(number([*begun, *drafts], -1)))
    return events, fold, ending


def test_all_chunks_become_well_formed_events() -> None:
    events, fold, ending = translate(CHUNKS)
    grammar.check(events, finished=False)
    for event in events:
        if not event["type"].startswith("outlive:"):
            assert_official_event(event)
    kinds = [item["type"] for item in fold.output]
    assert kinds == ["reasoning", "message", "mcp_call", "mcp_call", "message", "message"]
    assert [item["status"] for item in fold.output][2:4] == ["failed", "completed"]
    assert ending.usage == {"input_tokens": 11, "output_tokens": 22, "total_tokens": 33}


def test_an_agent_without_output_gives_an_empty_message() -> None:
    _, fold, _ = translate([])
    assert [item["type"] for item in fold.output] == ["message"]

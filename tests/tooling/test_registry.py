"""The registry routes each entry of a request's tools to its source and gives the model distinct names."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.core.toolcalls import ToolOutcome, ToolSpec
from outlive.ports.toolbox import Invocation, SessionRequest, ToolSession
from outlive.tooling.registry import MAX_ENTRIES, MAX_NAME, OpenedSource, ToolRegistry, choose_alias


class StubTool:
    def __init__(self, label: str, name: str, read_only: bool) -> None:
        self.spec = ToolSpec(label, name)
        self.idempotent = self.read_only = read_only
        self.seconds = 1.0
        self.needs_approval = False

    async def call(self, invocation: Invocation) -> ToolOutcome:
        return ToolOutcome(self.spec.name)


class StubSource:
    def __init__(self, label: str, *names: str, approval: str = "never", listed: Json | None = None) -> None:
        self.label, self.names, self.approval, self.listed = label, names, approval, listed
        self.checked: list[str] = []
        self.closed = 0
        self.fails = False

    def owns(self, entry: Json) -> bool:
        return bool(entry["server_label"] == self.label)

    def check(self, entry: Json, param: str) -> None:
        self.checked.append(param)

    async def open(self, entry: Json, session_request: SessionRequest) -> OpenedSource:
        if self.fails:
            raise UpstreamFault("down")
        tools = [StubTool(self.label, name, name.startswith("read")) for name in self.names]
        return OpenedSource(tools, self.approval, self.listed, self.close)

    async def close(self) -> None:
        self.closed += 1


def ask(*tools: Json) -> CreateResponse:
    return CreateResponse(model="m", input=[], tools=list(tools))


def entry(label: str, **fields: Any) -> Json:
    return {"type": "mcp", "server_label": label, **fields}


def open_session(registry: ToolRegistry, request: CreateResponse) -> ToolSession:
    return asyncio.run(registry.open(SessionRequest(response_id="r", owner="ann", request=request)))


def test_each_entry_is_checked_by_its_source() -> None:
    docs, files = StubSource("docs"), StubSource("files")
    ToolRegistry([docs, files]).check(ask({"type": "function", "name": "f"}, entry("files"), entry("docs")))
    assert (docs.checked, files.checked) == (["tools[2]"], ["tools[1]"])


@pytest.mark.parametrize("labels", [["unknown"], ["docs", "docs"]])
def test_an_unknown_or_repeated_label_is_refused(labels: list[str]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ToolRegistry([StubSource("docs")]).check(ask(*map(entry, labels)))
    assert refused.value.param == f"tools[{len(labels) - 1}].server_label"


def test_a_request_is_served_when_it_names_tools_or_the_server_always_offers_them() -> None:
    source = StubSource("docs", "read")
    plain = ask({"type": "function", "name": "f"})
    assert not ToolRegistry([source]).serves(plain)
    assert ToolRegistry([source]).serves(ask(entry("docs")))
    always = ToolRegistry([source], [entry("docs")])
    assert always.serves(plain)
    assert list(open_session(always, plain).tools) == ["read"]
    # What the request itself says of these tools counts.
    assert list(open_session(always, ask(entry("docs", allowed_tools=[]))).tools) == []


def test_only_allowed_tools_are_offered_with_the_approval_that_the_request_asks_for() -> None:
    registry = ToolRegistry([StubSource("docs", "read", "write", "drop", approval="always")])
    session = open_session(
        registry, ask(entry("docs", allowed_tools=["read", "write"], require_approval={"never": {"read_only": True}}))
    )
    assert {name: tool.needs_approval for name, tool in session.tools.items()} == {"read": False, "write": True}
    everything = open_session(registry, ask(entry("docs")))
    assert [tool.needs_approval for tool in everything.tools.values()] == [True] * 3
    invocation = Invocation(arguments={}, key="k", response_id="r", owner="ann", repeated=False, report=lambda _: None)
    assert asyncio.run(everything.tools["drop"].call(invocation)) == ToolOutcome("drop")


def test_tools_of_the_same_name_get_their_label_as_a_prefix() -> None:
    registry = ToolRegistry([StubSource("docs", "search"), StubSource("web", "search")])
    session = open_session(registry, ask(entry("docs"), entry("web"), {"type": "function", "name": "search"}))
    assert {alias: tool.spec.label for alias, tool in session.tools.items()} == {
        "docs_search": "docs",
        "web_search": "web",
    }


def test_names_fit_the_limits_of_models_servers() -> None:
    taken: dict[str, int] = {}
    seen: set[str] = set()
    for name in ("a.b/c", "a b c", "a-b_c", "x" * 100, "x" * 99, "", *["a.b/c"] * 200):
        alias = choose_alias(ToolSpec("some.label", name), taken)
        assert alias not in seen
        assert 1 <= len(alias) <= MAX_NAME
        assert set(alias) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")
        seen.add(alias)


def test_names_for_many_tools_of_one_name_are_found_in_linear_time() -> None:
    names = ["same"] * 20_000
    started = time.thread_time()
    session = open_session(ToolRegistry([StubSource("docs", *names)]), ask(entry("docs")))
    assert time.thread_time() - started < 5.0  # a minute and more if each tries all numbers
    assert len(session.tools) == len(names)


def test_more_servers_of_tools_than_the_limit_are_refused() -> None:
    labels = [f"server{number}" for number in range(MAX_ENTRIES + 1)]
    registry = ToolRegistry([StubSource(label) for label in labels])
    registry.check(ask(*map(entry, labels[:-1])))
    with pytest.raises(InvalidRequest) as refused:
        registry.check(ask(*map(entry, labels)))
    assert refused.value.param == f"tools[{MAX_ENTRIES}]"


def test_a_session_shows_the_lists_and_closes_its_sources() -> None:
    listed: Json = {"id": "mcpl_1", "type": "mcp_list_tools"}
    docs, files = StubSource("docs", listed=listed), StubSource("files")
    registry = ToolRegistry([docs, files])
    session = open_session(registry, ask(entry("docs"), entry("files")))
    assert session.lists == [listed]
    asyncio.run(session.close())
    assert (docs.closed, files.closed) == (1, 1)


def test_a_source_that_fails_to_open_closes_the_others() -> None:
    docs, files = StubSource("docs"), StubSource("files")
    files.fails = True
    with pytest.raises(UpstreamFault):
        open_session(ToolRegistry([docs, files]), ask(entry("docs"), entry("files")))
    assert docs.closed == 1

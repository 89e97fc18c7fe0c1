"""The rack: each entry of a request's tools goes to its source, and the model gets names that it can tell apart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.core.toolcalls.calls import ToolOutcome, ToolSpec
from outlive.ports.toolbox import Invocation, SessionRequest, ToolSession
from outlive.tooling.registry import MAX_NAME, Opened, ToolRegistry, choose_alias


class StubRaw:
    def __init__(self, label: str, name: str, read_only: bool) -> None:
        self.spec = ToolSpec(label, name)
        self.idempotent = self.read_only = read_only
        self.seconds = 1.0

    async def call(self, calling: Invocation) -> ToolOutcome:
        return ToolOutcome(self.spec.name)


class StubSource:
    def __init__(self, label: str, *names: str, default: str = "never", listed: Json | None = None) -> None:
        self.label, self.names, self.default, self.listed = label, names, default, listed
        self.checked: list[str] = []
        self.closed = 0
        self.fails = False

    def owns(self, entry: Json) -> bool:
        return bool(entry["server_label"] == self.label)

    def check(self, entry: Json, param: str) -> None:
        self.checked.append(param)

    def default_approval(self, entry: Json) -> str:
        return self.default

    async def open(self, entry: Json, order: SessionRequest) -> Opened:
        if self.fails:
            raise UpstreamFault("down")
        return Opened(
            [StubRaw(self.label, name, name.startswith("read")) for name in self.names], self.listed, self.close
        )

    async def close(self) -> None:
        self.closed += 1


def ask(*tools: Json) -> CreateResponse:
    return CreateResponse(model="m", input=[], tools=list(tools))


def entry(label: str, **fields: Any) -> Json:
    return {"type": "mcp", "server_label": label, **fields}


def open_bench(rack: ToolRegistry, request: CreateResponse) -> ToolSession:
    return asyncio.run(rack.open(SessionRequest(response_id="r", owner="ann", request=request, items=[])))


def test_each_entry_is_checked_by_its_source() -> None:
    docs, files = StubSource("docs"), StubSource("files")
    ToolRegistry([docs, files]).check(ask({"type": "function", "name": "f"}, entry("files"), entry("docs")))
    assert (docs.checked, files.checked) == (["tools[2]"], ["tools[1]"])


@pytest.mark.parametrize("labels", [["nobody"], ["docs", "docs"]])
def test_labels_must_be_known_and_different(labels: list[str]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ToolRegistry([StubSource("docs")]).check(ask(*map(entry, labels)))
    assert refused.value.param == f"tools[{len(labels) - 1}].server_label"


def test_a_run_has_tools_when_its_request_asks_or_the_server_always_offers() -> None:
    source = StubSource("docs", "read")
    plain = ask({"type": "function", "name": "f"})
    assert not ToolRegistry([source]).serves(plain)
    assert ToolRegistry([source]).serves(ask(entry("docs")))
    always = ToolRegistry([source], [entry("docs")])
    assert always.serves(plain)
    assert list(open_bench(always, plain).tools) == ["read"]
    # What the request itself says of these tools counts.
    assert list(open_bench(always, ask(entry("docs", allowed_tools=[]))).tools) == []


def test_only_allowed_tools_are_offered_and_a_person_is_asked_as_wished() -> None:
    rack = ToolRegistry([StubSource("docs", "read", "write", "drop", default="always")])
    bench = open_bench(
        rack, ask(entry("docs", allowed_tools=["read", "write"], require_approval={"never": {"read_only": True}}))
    )
    assert {name: tool.needs_approval for name, tool in bench.tools.items()} == {"read": False, "write": True}
    everything = open_bench(rack, ask(entry("docs")))
    assert [tool.needs_approval for tool in everything.tools.values()] == [True] * 3
    calling = Invocation(arguments={}, key="k", response_id="r", owner="ann", repeated=False, report=lambda _: None)
    assert asyncio.run(everything.tools["drop"].call(calling)) == ToolOutcome("drop")


def test_tools_of_one_name_are_told_apart_by_their_label() -> None:
    rack = ToolRegistry([StubSource("docs", "search"), StubSource("web", "search")])
    bench = open_bench(rack, ask(entry("docs"), entry("web"), {"type": "function", "name": "search"}))
    assert {alias: tool.spec.label for alias, tool in bench.tools.items()} == {
        "docs_search": "docs",
        "web_search": "web",
    }


def test_names_are_such_that_models_servers_take_them() -> None:
    taken: set[str] = set()
    for name in ("a.b/c", "a b c", "a-b_c", "x" * 100, "x" * 99, "", "a.b/c"):
        alias = choose_alias(ToolSpec("some.label", name), taken)
        assert alias not in taken
        assert 1 <= len(alias) <= MAX_NAME
        assert set(alias) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")
        taken.add(alias)


def test_lists_are_shown_and_what_was_opened_is_closed() -> None:
    listed: Json = {"id": "mcpl_1", "type": "mcp_list_tools"}
    docs, files = StubSource("docs", listed=listed), StubSource("files")
    rack = ToolRegistry([docs, files])
    bench = open_bench(rack, ask(entry("docs"), entry("files")))
    assert bench.lists == [listed]
    asyncio.run(bench.close())
    assert (docs.closed, files.closed) == (1, 1)


def test_when_one_cannot_be_opened_the_others_are_closed_again() -> None:
    docs, files = StubSource("docs"), StubSource("files")
    files.fails = True
    with pytest.raises(UpstreamFault):
        open_bench(ToolRegistry([docs, files]), ask(entry("docs"), entry("files")))
    assert docs.closed == 1

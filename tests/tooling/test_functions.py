"""Plain typed functions as tools: their descriptions for the model, and the outcomes of their calls."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Annotated, Any, Literal

import msgspec
import pytest

from outlive.core.errors import InvalidRequest, SettingsError
from outlive.core.requests.create import CreateResponse
from outlive.core.toolcalls import ToolOutcome
from outlive.ports.toolbox import Invocation, SessionRequest, ToolProgress
from outlive.tooling.functions import FunctionSource, PythonTool, Threads, find_functions
from outlive.tools import ToolContext, ToolError, tool


class Unit(Enum):
    C = "celsius"
    F = "fahrenheit"


@dataclass
class Place:
    name: str
    country: str = "FR"


def weather(
    city: str,
    days: int = 1,
    unit: Unit = Unit.C,
    detail: Literal["short", "long"] | None = None,
    places: list[Place] | None = None,
) -> dict[str, Any]:
    """Tell the weather.

    It is right most of the time.

    Args:
        city: Where to look.
        days (int): How far ahead.

    Returns:
        unit: nothing to do with a parameter
    """
    return {"city": city, "days": days, "unit": unit, "places": [f"{at.name} {at.country}" for at in places or []]}


def make(function: Any, seconds: float = 60.0) -> PythonTool:
    return PythonTool(function, seconds, Threads())


def call(
    function: Any, arguments: dict[str, Any] | None = None, reports: list[ToolProgress] | None = None
) -> ToolOutcome:
    async def go() -> ToolOutcome:
        invocation = Invocation(
            arguments=arguments or {},
            key="resp_1/mcp_1",
            response_id="resp_1",
            owner="ann",
            repeated=False,
            report=([] if reports is None else reports).append,
        )
        outcome = await make(function).call(invocation)
        await asyncio.sleep(0)
        return outcome

    return asyncio.run(go())


def error_of(outcome: ToolOutcome) -> str:
    assert outcome.error is not None
    return str(outcome.error["content"][0]["text"])


# -- descriptions


def test_name_description_and_schema_come_from_the_function() -> None:
    spec = make(weather).spec
    assert (spec.label, spec.name) == ("outlive", "weather")
    assert spec.description == "Tell the weather.\n\nIt is right most of the time."
    schema = spec.parameters
    assert schema["type"] == "object"
    assert schema["required"] == ["city"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["city"] == {"type": "string", "description": "Where to look."}
    assert schema["properties"]["days"] == {"type": "integer", "default": 1, "description": "How far ahead."}
    assert "description" not in schema["properties"]["unit"]
    assert set(schema["$defs"]) == {"Unit", "Place"}
    msgspec.json.encode(schema)


def test_a_parameter_is_described_in_its_type() -> None:
    def f(a: Annotated[str, "What it is."], b: Annotated[int, msgspec.Meta(ge=1, description="Many.")]) -> None:
        """F.

        :param a: not this
        :param b: nor this
        """

    properties = make(f).spec.parameters["properties"]
    assert properties["a"] == {"type": "string", "description": "What it is."}
    assert properties["b"] == {"type": "integer", "minimum": 1, "description": "Many."}
    assert make(f).spec.description == "F."


def test_the_decorator_sets_name_description_and_options() -> None:
    @tool(name="now", description="The time.", idempotent=True, seconds=5)
    def f() -> str:
        return "12:00"

    @tool(read_only=True)
    def g() -> str:
        return "12:00"

    @tool
    def h() -> str:
        return "12:00"

    assert (make(f).spec.name, make(f).spec.description) == ("now", "The time.")
    assert (make(f).idempotent, make(f).read_only, make(f).seconds) == (True, False, 5)
    assert (make(g).idempotent, make(g).read_only, make(g).seconds) == (True, True, 60.0)
    assert (make(h).idempotent, make(h, seconds=7).seconds) == (False, 7)
    assert make(f).spec.parameters == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }


def test_the_context_is_not_in_the_schema() -> None:
    def f(city: str, context: ToolContext) -> None: ...

    assert list(make(f).spec.parameters["properties"]) == ["city"]


def untyped(city) -> None: ...
def starred(*cities: str) -> None: ...
def keyworded(**cities: str) -> None: ...
def odd(thing: threading.Thread) -> None: ...
def unknown(thing: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (untyped, "The parameter city of the tool .*untyped has no type."),
        (starred, "can have only parameters with names and types"),
        (keyworded, "can have only parameters with names and types"),
        (odd, "a type without a JSON schema"),
        (unknown, "The types of the tool .*unknown cannot be read: name 'Nowhere' is not defined."),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_with_one_sentence(function: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as refused:
        make(function)
    assert "\n" not in str(refused.value)


# -- calls


def test_arguments_are_converted_to_the_types_of_the_parameters() -> None:
    arguments = {"city": "Paris", "days": "3", "unit": "fahrenheit", "places": [{"name": "Lyon"}]}
    output = call(weather, arguments).output
    assert msgspec.json.decode(output or "") == {
        "city": "Paris",
        "days": 3,
        "unit": "fahrenheit",
        "places": ["Lyon FR"],
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "missing required field `city`"),
        ({"city": 5}, "Expected `str`, got `int` - at `$.city`"),
        ({"city": "Paris", "town": "x"}, "unknown field `town`"),
    ],
)
def test_wrong_arguments_fail_the_call_with_the_reason(arguments: dict[str, Any], words: str) -> None:
    assert words in error_of(call(weather, arguments))


def test_results_become_text() -> None:
    results: list[tuple[Any, str]] = [
        ("plain", "plain"),
        (None, ""),
        (5, "5"),
        ([1, {"a": Unit.C}], '[1,{"a":"celsius"}]'),
        (Place("Lyon"), '{"name":"Lyon","country":"FR"}'),
        (complex(1, 2), '"(1+2j)"'),
    ]
    for result, text in results:

        def f(given: Any = result) -> Any:
            return given

        def g() -> Any:
            return result  # noqa: B023

        assert call(g).output == text


def test_missing_arguments_have_the_defaults_of_the_function() -> None:
    def f(names: list[str] = ["a"], when: Place = Place("Lyon")) -> str:  # noqa: B006,B008
        return f"{names} {when.name}"

    assert call(f).output == "['a'] Lyon"


def test_an_exception_fails_the_call_with_its_type_and_message() -> None:
    def broken() -> None:
        raise ValueError("no such city")

    def refusing() -> None:
        raise ToolError("Ask for a city in France.")

    async def exiting() -> None:
        raise SystemExit(3)

    def exiting_in_a_thread() -> None:
        raise SystemExit(3)

    def interrupting() -> None:
        raise KeyboardInterrupt

    def stopping() -> None:
        raise StopIteration

    assert error_of(call(broken)) == "ValueError: no such city"
    assert error_of(call(refusing)) == "Ask for a city in France."
    assert error_of(call(exiting)) == "SystemExit: 3"
    assert error_of(call(exiting_in_a_thread)) == "RuntimeError: SystemExit: 3"
    assert error_of(call(interrupting)) == "RuntimeError: KeyboardInterrupt: "
    assert error_of(call(stopping)).startswith("RuntimeError")


def test_the_message_of_an_error_is_limited_in_length() -> None:
    def broken() -> None:
        raise ValueError("x" * 100_000)

    assert len(error_of(call(broken))) == 1000


def test_the_context_holds_the_calls_key_response_and_owner() -> None:
    async def f(context: ToolContext) -> str:
        return f"{context.key} {context.response_id} {context.owner} {context.repeated}"

    assert call(f).output == "resp_1/mcp_1 resp_1 ann False"


@pytest.mark.parametrize("threaded", [True, False])
def test_progress_is_reported_from_any_thread(threaded: bool) -> None:
    def blocking(context: ToolContext) -> None:
        context.report("half", progress=1, total=2)

    async def waiting(context: ToolContext) -> None:
        context.report("half", progress=1, total=2)

    reports: list[ToolProgress] = []
    call(blocking if threaded else waiting, reports=reports)
    assert reports == [ToolProgress(1, 2, "half")]


# -- threads


def test_a_blocking_function_does_not_block_the_event_loop() -> None:
    release = threading.Event()

    def block() -> str:
        assert threading.current_thread() is not threading.main_thread()
        release.wait(10)
        return "done"

    async def go() -> None:
        waiting = asyncio.create_task(Threads().run(block))
        await asyncio.sleep(0)
        release.set()
        assert await waiting == "done"

    asyncio.run(go())


def test_no_more_threads_run_at_once_than_the_limit() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def block() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    async def go() -> None:
        threads = Threads(limit=2)
        await asyncio.gather(*(threads.run(block) for _ in range(6)))

    asyncio.run(go())
    assert most == 2


def test_a_thread_left_behind_by_a_cancelled_call_holds_its_slot_until_it_ends() -> None:
    release = threading.Event()

    async def go() -> None:
        threads = Threads(limit=1)
        first = asyncio.create_task(threads.run(lambda: release.wait(10)))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        second = asyncio.create_task(threads.run(lambda: "second"))
        await asyncio.sleep(0.01)
        assert not second.done()
        release.set()
        assert await second == "second"

    asyncio.run(go())


# -- modules


def module_of(**members: Any) -> ModuleType:
    module = ModuleType("my_tools")
    for name, member in members.items():
        member.__module__ = "my_tools"
        setattr(module, name, member)
    return module


def test_all_public_functions_of_a_module_are_tools_unless_some_are_marked() -> None:
    def one() -> None: ...
    def two() -> None: ...
    def _three() -> None: ...

    module = module_of(one=one, two=two, _three=_three)
    setattr(module, "elsewhere", weather)  # noqa: B010 - imported, not its own
    assert [each.__name__ for each in find_functions(module)] == ["one", "two"]
    tool(two)
    assert [each.__name__ for each in find_functions(module)] == ["two"]


def test_a_module_without_functions_is_refused() -> None:
    with pytest.raises(SettingsError, match="has no function that could be a tool"):
        find_functions(ModuleType("empty"))


def test_requests_use_the_servers_own_tools_by_their_label() -> None:
    functions = FunctionSource([make(weather)])
    assert functions.owns({"type": "mcp", "server_label": "outlive"})
    assert not functions.owns({"type": "mcp", "server_label": "docs"})
    assert not functions.owns({"type": "mcp", "server_label": "outlive", "server_url": "https://x"})
    for allowed in (None, ["weather"], {"tool_names": ["weather"]}, {"read_only": True}):
        functions.check({"allowed_tools": allowed}, "tools[0]")
    with pytest.raises(InvalidRequest, match="no tool 'wether'"):
        functions.check({"allowed_tools": ["wether"]}, "tools[0]")
    request = SessionRequest(response_id="r", owner="ann", request=CreateResponse(model="m", input=[]))
    assert asyncio.run(functions.open({}, request)).approval == "never"

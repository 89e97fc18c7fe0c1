"""Plain typed functions as tools of the server's own."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar, overload

import msgspec

from outlive.core.errors import SettingsError
from outlive.core.events import Json
from outlive.core.requests.checks import refuse
from outlive.core.toolcalls.calls import ToolOutcome, ToolSpec, fail
from outlive.ports.toolbox import Invocation, SessionRequest, ToolProgress
from outlive.tooling.registry import Opened
from outlive.tooling.signatures import read_signature
from outlive.tooling.threads import Threads

log = logging.getLogger(__name__)

# The label under which requests name the tools of this server's own.
LABEL = "outlive"
SECONDS = 60.0
MAX_ERROR = 1000

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__outlive_tool__"


class ToolError(Exception):
    """Raised by a tool: its message is what the model is told."""


class Context:
    """What a tool may know of the call it serves: take a parameter of this type, and it is given."""

    def __init__(self, invocation: Invocation) -> None:
        self.key = invocation.key  # the same for the same call, however often it is made
        self.response_id = invocation.response_id
        self.owner = invocation.owner
        self.repeated = invocation.repeated  # it was begun before, and nobody knows how far it came
        self._report = invocation.report
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def report(self, message: str | None = None, *, progress: float | None = None, total: float | None = None) -> None:
        """Say how far the call has come: it shows in the response's stream. May be called from any thread."""
        told = ToolProgress(progress, total, message)
        if threading.get_ident() == self._thread:
            self._report(told)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has left
            self._loop.call_soon_threadsafe(self._report, told)


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """What the decorator says of a function."""

    name: str | None = None
    description: str | None = None
    idempotent: bool = False
    read_only: bool = False
    seconds: float | None = None


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    read_only: bool = False,
    seconds: float | None = None,
) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **marks: Any) -> Any:
    """Mark a function as a tool. In a module with marked functions only these are tools, else all public ones.

    `idempotent`: a call that a crash interrupted may simply be made again. `read_only`: it changes nothing, which makes
    it idempotent. `seconds`: how long a call may take.
    """

    def mark(function: F) -> F:
        setattr(function, _MARK, Marks(**marks))
        return function

    return mark if function is None else mark(function)


class FunctionTool:
    """One function as a tool. Raises SettingsError when it cannot be one."""

    def __init__(self, function: Callable[..., Any], seconds: float, threads: Threads) -> None:
        marks: Marks = getattr(function, _MARK, Marks())
        self._signature = read_signature(function, Context)
        self._function = function
        self._threads = threads
        self.idempotent = marks.idempotent or marks.read_only
        self.read_only = marks.read_only
        self.seconds = seconds if marks.seconds is None else marks.seconds
        name = marks.name or function.__name__
        self.spec = ToolSpec(LABEL, name, marks.description or self._signature.about, self._signature.schema)

    async def call(self, invocation: Invocation) -> ToolOutcome:
        signature = self._signature
        try:
            given = msgspec.convert(invocation.arguments, signature.arguments, strict=False)
        except msgspec.ValidationError as error:
            return fail(f"The arguments are wrong: {error}")
        values = {name: getattr(given, name) for name in signature.arguments.__struct_fields__}
        if signature.context is not None:
            values[signature.context] = Context(invocation)
        try:
            return ToolOutcome(_render(await self._run(values)))
        except ToolError as error:
            return fail(str(error)[:MAX_ERROR])
        except (Exception, SystemExit) as error:
            log.warning("the tool %s failed", self.spec.name, exc_info=error)
            return fail(f"{type(error).__name__}: {error}"[:MAX_ERROR])

    async def _run(self, values: dict[str, Any]) -> object:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(**values)
        return await self._threads.run(lambda: self._function(**values))


class Functions:
    """All registered functions, under one label."""

    def __init__(self, tools: Sequence[FunctionTool]) -> None:
        self._tools = tools

    def owns(self, entry: Json) -> bool:
        return bool(entry.get("server_label") == LABEL and "server_url" not in entry)

    def check(self, entry: Json, param: str) -> None:
        known = {tool.spec.name for tool in self._tools}
        allowed = entry.get("allowed_tools")
        names = allowed if isinstance(allowed, list) else (allowed or {}).get("tool_names") or []
        for name in names:
            if name not in known:
                refuse(f"This server has no tool '{name}'.", f"{param}.allowed_tools")

    def default_approval(self, entry: Json) -> str:
        return "never"  # whoever registered it has agreed to its use

    async def open(self, entry: Json, session_request: SessionRequest) -> Opened:
        return Opened(self._tools)


def read_module(module: ModuleType, seconds: float, threads: Threads) -> list[FunctionTool]:
    """The tools in a module. Raises SettingsError naming what is wrong with it."""
    found = [each for each in vars(module).values() if inspect.isfunction(each)]
    marked = [function for function in found if hasattr(function, _MARK)]
    own = [each for each in found if each.__module__ == module.__name__ and not each.__name__.startswith("_")]
    chosen = marked or own
    if not chosen:
        raise SettingsError(f"The module {module.__name__} has no function that could be a tool.")
    return [FunctionTool(function, seconds, threads) for function in chosen]


def read_function(function: object, name: str, seconds: float, threads: Threads) -> FunctionTool:
    if not inspect.isfunction(function):
        raise SettingsError(f"{name} is no function, so it cannot be a tool.")
    return FunctionTool(function, seconds, threads)


def _render(result: object) -> str:
    if result is None:
        return ""
    return result if isinstance(result, str) else msgspec.json.encode(result, enc_hook=str).decode()

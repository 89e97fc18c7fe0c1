"""Plain typed functions as tools of the server's own."""

import asyncio
import contextlib
import contextvars
import inspect
import logging
import re
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints, overload

import msgspec

from outlive.config.user_modules import load_module, load_object
from outlive.core.errors import SettingsError
from outlive.core.events import Json
from outlive.core.owners import split
from outlive.core.requests.checks import refuse
from outlive.core.toolcalls import MAX_ERROR, ToolOutcome, ToolSpec, describe_error, fail, render_result
from outlive.ports.toolbox import Invocation, SessionRequest, ToolProgress
from outlive.tooling.registry import OpenedSource

log = logging.getLogger(__name__)

# The label under which requests name the tools of this server's own.
LABEL = "outlive"
MAX_THREADS = 32

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__outlive_tool__"
_ARGUMENT = re.compile(r"^\s*(?::param\s+)?(\w+)\s*(?:\([^)]*\))?\s*:\s*(.+)$")
_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters|Params|Returns?|Raises|Yields|Examples?|Notes?)\s*:\s*$")
_ARGUMENT_SECTIONS = frozenset({"Args", "Arguments", "Parameters", "Params"})


class ToolError(Exception):
    """Raised by a tool: the model gets its message."""


class ToolContext:
    """The call that a tool serves. A tool receives it by a parameter of this type."""

    def __init__(self, invocation: Invocation) -> None:
        self.key = invocation.key  # the same for the same call, however often it is made
        self.response_id = invocation.response_id
        self.owner, self.end_user = split(invocation.owner)
        self.repeated = invocation.repeated  # it was begun before, and how far it came is unknown
        self._report = invocation.report
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def report(self, message: str | None = None, *, progress: float | None = None, total: float | None = None) -> None:
        """Report progress, which shows in the response's stream. May be called from any thread."""
        reported = ToolProgress(progress, total, message)
        if threading.get_ident() == self._thread:
            self._report(reported)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has stopped
            self._loop.call_soon_threadsafe(self._report, reported)


class ToolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options given to the decorator."""

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
def tool(function: Any = None, /, **options: Any) -> Any:
    """Mark a function as a tool. In a module with marked functions only these are tools, else all public ones.

    `idempotent`: a call that a crash interrupted may simply be made again. `read_only`: it changes nothing, which makes
    it idempotent. `seconds`: how long a call may take.
    """

    def mark(function: F) -> F:
        setattr(function, _MARK, ToolOptions(**options))
        return function

    return mark if function is None else mark(function)


class Threads:
    """Runs blocking functions, each in a daemon thread: one that hangs delays neither other work nor the exit."""

    def __init__(self, limit: int = MAX_THREADS) -> None:
        self._slots = asyncio.Semaphore(limit)

    async def run(self, work: Callable[[], Any]) -> Any:
        """Return what the work returns, raise what it raises. A thread cannot be stopped: a cancelled caller leaves it
        behind, and it holds its slot until it ends."""
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def settle(outcome: tuple[Any, BaseException | None]) -> None:
            self._slots.release()
            if not done.done():
                done.set_result(outcome)

        def act() -> None:
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = context.run(work), None
            except BaseException as raised:  # a user's function may raise anything; the thread must report it
                outcome = None, raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has stopped
                loop.call_soon_threadsafe(settle, outcome)

        threading.Thread(target=act, daemon=True, name="tool").start()
        result, error = await done
        if error is not None:  # sys.exit() or Ctrl-C in a tool ends the call, not the server
            raise error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
        return result


class PythonTool:
    """One function as a tool. Raises SettingsError when it cannot be one."""

    needs_approval = False

    def __init__(self, function: Callable[..., Any], seconds: float, threads: Threads) -> None:
        options: ToolOptions = getattr(function, _MARK, ToolOptions())
        self._signature = read_signature(function)
        self._function = function
        self._threads = threads
        self.idempotent = options.idempotent or options.read_only
        self.read_only = options.read_only
        self.seconds = seconds if options.seconds is None else options.seconds
        name = options.name or function.__name__
        self.spec = ToolSpec(LABEL, name, options.description or self._signature.about, self._signature.schema)

    async def call(self, invocation: Invocation) -> ToolOutcome:
        signature = self._signature
        try:
            given = msgspec.convert(invocation.arguments, signature.arguments, strict=False)
        except msgspec.ValidationError as error:
            return fail(f"The arguments are wrong: {error}")
        values = {name: getattr(given, name) for name in signature.arguments.__struct_fields__}
        if signature.context is not None:
            values[signature.context] = ToolContext(invocation)
        try:
            if inspect.iscoroutinefunction(self._function):
                result = await self._function(**values)
            else:
                result = await self._threads.run(lambda: self._function(**values))
            return ToolOutcome(render_result(result))
        except ToolError as error:
            return fail(str(error)[:MAX_ERROR])
        except (Exception, SystemExit) as error:  # a user's function may raise anything, which fails only its call
            about = {"tool": self.spec.name, "response_id": invocation.response_id}
            log.warning("tool failed", exc_info=error, extra=about)
            return fail(describe_error(error))


class FunctionSource(msgspec.Struct):
    """All registered functions, under one label."""

    tools: Sequence[PythonTool]

    def owns(self, entry: Json) -> bool:
        return bool(entry.get("server_label") == LABEL and "server_url" not in entry)

    def check(self, entry: Json, param: str) -> None:
        known = {tool.spec.name for tool in self.tools}
        allowed = entry.get("allowed_tools")
        names = allowed if isinstance(allowed, list) else (allowed or {}).get("tool_names") or []
        for name in names:
            if name not in known:
                refuse(f"This server has no tool '{name}'.", f"{param}.allowed_tools")

    async def open(self, entry: Json, session_request: SessionRequest) -> OpenedSource:
        return OpenedSource(self.tools, "never")  # the operator who registered them has agreed to their use


def load_tools(references: Sequence[str], seconds: float) -> list[PythonTool]:
    """Load the modules and functions that the settings name. Raises SettingsError, with one sentence."""
    tools: dict[str, PythonTool] = {}
    threads = Threads()
    for reference in references:
        if ":" in reference:
            functions = [load_object(reference, "--tools")[1]]
            if not inspect.isfunction(functions[0]):
                raise SettingsError(f"{reference} is no function, so it cannot be a tool.")
        else:
            functions = find_functions(load_module(reference, "--tools"))
        for function in functions:
            loaded = PythonTool(function, seconds, threads)
            if loaded.spec.name in tools:
                raise SettingsError(f"There are two tools named {loaded.spec.name}, one of them in {reference}.")
            tools[loaded.spec.name] = loaded
    return list(tools.values())


def find_functions(module: ModuleType) -> list[Callable[..., Any]]:
    """Return the functions of a module that are tools. Raises SettingsError when there is none."""
    found = [each for each in vars(module).values() if inspect.isfunction(each)]
    marked = [function for function in found if hasattr(function, _MARK)]
    own = [each for each in found if each.__module__ == module.__name__ and not each.__name__.startswith("_")]
    if not (marked or own):
        raise SettingsError(f"The module {module.__name__} has no function that could be a tool.")
    return list(marked or own)


# -- signatures and docstrings


class Signature(msgspec.Struct, frozen=True):
    """A function's parameters as the arguments of a tool."""

    arguments: type[msgspec.Struct]
    context: str | None  # the parameter that takes the context
    schema: Json
    about: str  # the description of the tool


def read_signature(function: Callable[..., Any]) -> Signature:
    """Read a function. Raises SettingsError, with one sentence, for one that cannot be a tool."""
    name = f"{function.__module__}.{function.__qualname__}"
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError, ValueError, SyntaxError) as error:
        raise SettingsError(f"The types of the tool {name} cannot be read: {error}.") from error
    fields: list[Any] = []
    context: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise SettingsError(f"The tool {name} can have only parameters with names and types, not {parameter}.")
        if parameter.name not in hints:
            raise SettingsError(f"The parameter {parameter.name} of the tool {name} has no type.")
        if hints[parameter.name] is ToolContext:
            context = parameter.name
            continue
        field = (parameter.name, _describe(hints[parameter.name]))
        fields.append(field if parameter.default is parameter.empty else (*field, _default(parameter.default)))
    about, described = read_docstring(function)
    try:
        arguments = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True)
        return Signature(arguments, context, _make_schema(arguments, described), about)
    except (TypeError, ValueError, NotImplementedError) as error:
        why = str(error).splitlines()[0]
        raise SettingsError(f"The parameters of the tool {name} have a type without a JSON schema: {why}.") from error


def read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the tool's description, and those of its parameters: the `Args:` section, or `:param name:` lines."""
    about: list[str] = []
    described: dict[str, str] = {}
    section = ""
    for line in (inspect.getdoc(function) or "").splitlines():
        if (found := _SECTION.match(line)) is not None:
            section = found[1]
        elif section in _ARGUMENT_SECTIONS or line.lstrip().startswith(":param"):
            if (found := _ARGUMENT.match(line)) is not None:
                described[found[1]] = found[2].strip()
        elif not section and not line.lstrip().startswith(":"):
            about.append(line)
    return "\n".join(about).strip(), described


def _describe(hint: Any) -> Any:
    """Turn `Annotated[str, "a description"]` into a type whose schema has the description."""
    if get_origin(hint) is not Annotated:
        return hint
    inner, *notes = get_args(hint)
    described = [msgspec.Meta(description=note) for note in notes if isinstance(note, str)]
    for note in [note for note in notes if isinstance(note, msgspec.Meta)] + described[:1]:
        inner = Annotated[inner, note]
    return inner


def _default(value: Any) -> Any:
    plain = value is None or isinstance(value, str | int | float | bool)
    return value if plain else msgspec.field(default_factory=lambda: value)


def _make_schema(arguments: type[msgspec.Struct], described: dict[str, str]) -> Json:
    _, components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema: Json = components.pop("Arguments")
    schema.pop("title", None)
    for name, field in schema.get("properties", {}).items():
        if name in described and "description" not in field:
            field["description"] = described[name]
    return schema | ({"$defs": components} if components else {})

"""Assembly: the only place that picks the parts of a server by its settings."""

import asyncio
import contextlib
import importlib.util
import logging
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable
from functools import lru_cache

import uvloop

from outlive import server
from outlive.clock import RandomIds, SystemClock
from outlive.config.load import make_prices
from outlive.config.settings import Settings
from outlive.core import routing
from outlive.core.errors import InvalidRequest, SettingsError
from outlive.core.ids import IdSource
from outlive.dialects.build import make_backend
from outlive.dialects.embedded.backend import MODEL, LocalModel
from outlive.dialects.transport.http1 import HttpPool
from outlive.engine.engine import Engine, EngineOptions
from outlive.engine.slots import Capacity
from outlive.ports.backend import Backend, Backends
from outlive.ports.seal import Seal
from outlive.ports.toolbox import Tools
from outlive.ports.tracing import Tracer
from outlive.served_agents.backend import load_agents
from outlive.storage.seal import SecretSeal, make_seal
from outlive.storage.storage import open_storage
from outlive.telemetry import logs
from outlive.tooling.functions import LABEL, FunctionSource, load_tools
from outlive.tooling.mcp.servers import McpSource
from outlive.tooling.registry import ToolRegistry, ToolSource
from outlive.tooling.sender import HttpSender

log = logging.getLogger("outlive")

# Threads that commit and read must get a turn soon even while the loop is busy.
SWITCH_SECONDS = 0.0005
# Either names the endpoint to which traces are exported.
OTLP_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def serve(settings: Settings, announce: Callable[[], None] = lambda: None) -> None:
    """Serve until a signal says stop; `announce` it once the server listens. Raises SettingsError when it cannot."""
    logs.start_log(settings.log_level, settings.log_format)
    if settings.security_log:
        logs.start_security_log(settings.security_log)
    server.raise_descriptor_limit(settings)
    inherited = server.inherit()
    if settings.processes > 1 and inherited is None:
        sys.exit(asyncio.run(server.Supervisor(settings, announce).run()))
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, announce, inherited))


async def _serve(settings: Settings, announce: Callable[[], None], inherited: server.Inherited | None) -> None:
    asyncio.get_running_loop().set_exception_handler(logs.log_stray)
    with inherited.listening if inherited else server.listen(settings.host, settings.port) as listening:
        async with open_engine(settings) as engine:
            logs.Formatter.node = engine.worker.name
            await server.run_until_signal(settings, engine, listening, announce, inherited)
    await server.end_stubborn_tasks()


@contextlib.asynccontextmanager
async def open_engine(settings: Settings, backends: Backends | None = None) -> AsyncIterator[Engine]:
    """Start the engine that the settings describe, with other backends than theirs if these are given."""
    async with contextlib.AsyncExitStack() as stack:
        name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"  # of this process, and of no other ever
        capacity = _read_capacity(settings)
        opened = open_storage(settings.database, name, settings.lease_seconds, capacity)
        storage = await stack.enter_async_context(opened)
        if backends is None:
            backends = await _open_backends(settings, stack)
        sender = HttpSender(
            private=settings.webhook_private, proxied=settings.webhook_proxy, seconds=settings.webhook_seconds
        )
        stack.callback(sender.close)
        options, seal, ids = _read_options(settings, name, capacity, sender), SecretSeal([storage.secret]), RandomIds()
        tools = build_tools(settings, ids, make_seal(settings.database, settings.seal_keys))
        engine = Engine(storage, backends, options, clock=SystemClock(), ids=ids, seal=seal, tools=tools)
        stack.push_async_callback(engine.stop)
        if recovered := await engine.start():
            log.info("recovering interrupted responses", extra={"count": recovered})
        yield engine


async def _open_backends(settings: Settings, stack: contextlib.AsyncExitStack) -> Backends:
    upstreams = settings.upstreams
    if not upstreams and not settings.agents:
        local = LocalModel(log.info)
        stack.push_async_callback(local.stop)
        upstreams = [await local.start()]
    pool, ids = HttpPool(), RandomIds()
    stack.callback(pool.close)
    backends: dict[str, Backend] = {upstream.name: make_backend(upstream, pool, ids) for upstream in upstreams}
    agents = load_agents(settings, ids)
    backends |= agents
    answer_all = {upstream.name for upstream in upstreams if upstream.any_model}
    aliases = {upstream.name: upstream.models for upstream in upstreams}

    @lru_cache(256)
    def route(model: str) -> tuple[Backend, str]:
        if model in agents:
            return agents[model], model
        if not upstreams:
            known = f"There is no model {model!r} here, only {', '.join(agents)}."
            raise InvalidRequest(known, param="model", code="model_not_found")
        name, upstream_model = routing.route(model, aliases)
        return backends[name], MODEL if name in answer_all else upstream_model

    return Backends(backends, route, frozenset(agents).union(*aliases.values()))


def _make_tracer(node: str) -> Tracer:
    """Make the tracer that exports to the OTLP endpoint which OpenTelemetry's own variables name, if they name one."""
    is_off = os.environ.get("OTEL_SDK_DISABLED") == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    if is_off or not any(map(os.environ.get, OTLP_ENDPOINTS)):
        return Tracer()
    try:
        # Takes time and memory that a server without traces need not spend.
        from outlive.telemetry.traces import OtelTracer
    except ImportError:
        log.warning("traces are off: OTEL_EXPORTER_OTLP_ENDPOINT needs outlive[otel], which is not installed")
        return Tracer()
    return OtelTracer(node)


def build_tools(settings: Settings, ids: IdSource, seal: Seal | None) -> Tools:
    """Build what runs need to use the server's own tools. Raises SettingsError for a tool that cannot be one."""
    sources: list[ToolSource] = []
    always = []
    if settings.tools:
        sources.append(FunctionSource(load_tools(settings.tools, settings.tool_seconds)))
        if settings.offer_tools:
            always.append({"type": "mcp", "server_label": LABEL})
    if importlib.util.find_spec("mcp") is not None:
        sources.append(McpSource(settings, ids))
    elif settings.mcp:
        raise SettingsError("[mcp] needs the MCP SDK: install outlive[mcp].")
    registry, steps, output = ToolRegistry(sources, always), settings.max_steps, settings.max_tool_output
    return Tools(toolbox=registry, ids=ids, seal=seal, max_steps=steps, max_output=output)


def _read_options(settings: Settings, name: str, capacity: Capacity, sender: HttpSender) -> EngineOptions:
    # A setting of the same name is the same, but for the prices.
    same = set(EngineOptions.__struct_fields__) & set(Settings.__struct_fields__) - {"prices"}
    return EngineOptions(
        name=name,
        sender=sender,
        capacity=capacity,
        claims=settings.role != "api",
        commit_seconds=settings.commit_ms / 1000,
        tracer=_make_tracer(name),
        prices=make_prices(settings),
        **{each: getattr(settings, each) for each in same},
    )


def _read_capacity(settings: Settings) -> Capacity:
    running, queued = settings.max_running_per_owner, settings.max_waiting_per_owner
    several = len(settings.keys) > 1 or settings.require_keys or settings.oidc
    # Where there are several owners, none may take all of a limit.
    half = [(most + 1) // 2 if several else 0 for most in (settings.max_running, settings.max_waiting)]
    return Capacity(
        running=settings.max_running,
        queued=settings.max_waiting,
        running_per_owner=half[0] if running is None else running,
        queued_per_owner=half[1] if queued is None else queued,
        policies=dict(settings.owners),
    )

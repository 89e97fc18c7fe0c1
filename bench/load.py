"""A load: many clients that do one thing again and again, and a window in which everything is counted.

Modes, each repeated by every client until the window is over:

    plain          one response, not streamed            stream         one response, streamed
    conversation   a new conversation and its turns      chain          the same by previous_response_id
    background     create, then GET until it has ended   get            GET of one finished response
    replay         GET of one finished response as a stream, from several places
    chat           a Chat Completions stream: the upstream itself, to know what a server adds
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools
import machine
import uvloop
from client import CHAT, PROMPT, REPLAY, RESPONSES, Client, Tally, now
from upstream import shape_of

RUNNING = ("queued", "in_progress")
# response.created, response.in_progress, output_item.added and content_part.added come before the first token.
EVENTS_BEFORE_TOKENS = 4


@dataclass(kw_only=True)
class Plan:
    """The requests of a load, their server, and how long they are sent."""

    mode: str
    model: str
    base: str = ""
    others: Sequence[str] = ()  # further nodes: clients are spread over all
    clients: int = 8
    seconds: float = 4
    warmup: float = 1
    spread: float = 0  # seconds over which the clients start; 0: all at once
    turns: int = 5
    response_id: str = ""
    after: Sequence[int] = (-1,)  # where replays start; -1: at the first event
    processes: Callable[[], list[int]] = list  # whose CPU and memory is counted
    upstream: Callable[[], list[int]] = list  # who else belongs to the load
    database: Callable[[], list[int]] = list  # where it is a server of its own
    watch_memory: bool = False

    @property
    def tokens(self) -> int:
        return shape_of(self.model).count


@dataclass
class Window:
    """The result of one measured window."""

    tally: Tally = field(repr=False)
    seconds: float = 0
    cpu: float = 0  # seconds, of the server
    own_cpu: float = 0  # seconds, of this process
    database_cpu: float = 0  # seconds
    elsewhere: float = 0  # cores that were busy with something else
    memory: int = 0  # KB above what the server had before the load

    @property
    def cpu_per_1000(self) -> float:
        """Milliseconds per 1,000 tokens."""
        return self.cpu * 1e6 / self.tally.tokens if self.tally.tokens else float("nan")

    @property
    def database_per_1000(self) -> float:
        """Milliseconds of the database's own per 1,000 tokens."""
        return self.database_cpu * 1e6 / self.tally.tokens if self.tally.tokens else float("nan")

    @property
    def cpu_per_request(self) -> float:
        """Milliseconds."""
        return self.cpu * 1e3 / self.tally.requests if self.tally.requests else float("nan")

    @property
    def database_per_request(self) -> float:
        """Milliseconds of the database's own."""
        return self.database_cpu * 1e3 / self.tally.requests if self.tally.requests else float("nan")

    def first_ms(self, quantile: float) -> float:
        return percentile(self.tally.first, quantile) * 1e3

    def latency_ms(self, quantile: float) -> float:
        return percentile(self.tally.latency, quantile) / 1e3


def percentile(values: Sequence[float], quantile: float) -> float:
    return sorted(values)[min(len(values) - 1, int(quantile * len(values)))] if values else float("nan")


async def plain(client: Client, plan: Plan) -> None:
    await client.counted(client.create())


async def stream(client: Client, plan: Plan) -> None:
    await client.counted(client.create(stream=True), plan.tokens)


async def chat(client: Client, plan: Plan) -> None:
    body = {"model": plan.model, "messages": [{"role": "user", "content": PROMPT}], "stream": True}
    body["stream_options"] = {"include_usage": True}
    await client.counted(client.call("POST", "/chat/completions", body), plan.tokens)


async def conversation(client: Client, plan: Plan) -> None:
    created = (await client.call("POST", "/conversations", {})).json()
    for _ in range(plan.turns):
        await client.counted(client.create(conversation=created["id"]))


async def chain(client: Client, plan: Plan) -> None:
    answer = await client.counted(client.create())
    for _ in range(plan.turns - 1):
        answer = await client.counted(client.create(previous_response_id=answer.json()["id"]))


async def background(client: Client, plan: Plan) -> None:
    response = (await client.create(background=True)).json()
    while response["status"] in RUNNING:
        await asyncio.sleep(0.02)
        response = (await client.counted(client.call("GET", f"/responses/{response['id']}"))).json()


async def get(client: Client, plan: Plan) -> None:
    await client.counted(client.call("GET", f"/responses/{plan.response_id}"))


async def replay(client: Client, plan: Plan) -> None:
    for after in plan.after:
        place = "" if after < 0 else f"&starting_after={after}"
        tokens = min(plan.tokens, plan.tokens + EVENTS_BEFORE_TOKENS - 1 - after)
        await client.counted(client.call("GET", f"/responses/{plan.response_id}?stream=true{place}"), tokens)


Mode = Callable[[Client, Plan], Awaitable[None]]
MODES: dict[str, Mode] = {
    mode.__name__: mode for mode in (plain, stream, chat, conversation, chain, background, get, replay)
}
READINGS = {"chat": CHAT, "replay": REPLAY}


async def _repeat(plan: Plan, tally: Tally, stop: asyncio.Event, number: int) -> None:
    bases = [plan.base, *plan.others]
    client = Client(bases[number % len(bases)], plan.model, tally, READINGS.get(plan.mode, RESPONSES))
    await asyncio.sleep(number * plan.spread / plan.clients)
    while not stop.is_set():
        try:
            await MODES[plan.mode](client, plan)
        except (OSError, KeyError, httptools.HttpParserError) as error:
            tally.errors[f"{type(error).__name__}: {error}"] += tally.open
            client.close()
            await asyncio.sleep(0.05)
    client.close()


async def measure(plan: Plan, longest: float = 60) -> Window:
    """Start the clients, warm up, count for a while, and let what has begun come to its end."""
    tally, stop = Tally(), asyncio.Event()
    before = machine.memory_kb(plan.processes()) if plan.watch_memory else 0
    clients = [asyncio.create_task(_repeat(plan, tally, stop, number)) for number in range(plan.clients)]
    await asyncio.sleep(plan.warmup + plan.spread)
    window = await _watch(plan, tally, before)
    stop.set()
    _, late = await asyncio.wait(clients, timeout=longest)
    for task in late:
        task.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    tally.dropped += len(late)
    return window


async def _watch(plan: Plan, tally: Tally, before: int) -> Window:
    processes, upstream, peak = plan.processes(), plan.upstream(), before
    cpu, own, busy = machine.cpu_seconds(processes), time.process_time(), machine.busy_seconds()
    fed, database = machine.cpu_seconds(upstream), plan.database()
    kept = machine.cpu_seconds(database)
    started, tally.open = now(), True
    while (left := started + plan.seconds - now()) > 0:
        await asyncio.sleep(min(0.5, left))
        if plan.watch_memory:
            peak = max(peak, machine.memory_kb(processes))
    tally.open, seconds = False, now() - started
    cpu, own = machine.cpu_seconds(processes) - cpu, time.process_time() - own
    kept = machine.cpu_seconds(database) - kept
    busy = machine.busy_seconds() - busy - cpu - own - kept - (machine.cpu_seconds(upstream) - fed)
    return Window(tally, seconds, cpu, own, kept, max(0.0, busy / seconds), peak - before)


def describe(window: Window) -> str:
    tally, seconds = window.tally, window.seconds
    lines = {
        "requests/s": f"{tally.requests / seconds:.1f}",
        "tokens/s": f"{tally.tokens / seconds:.0f}",
        "CPU": f"{window.cpu_per_1000:.2f} ms per 1,000 tokens, {window.cpu_per_request:.3f} ms per request",
        "first p50/p99": f"{window.first_ms(0.5):.2f} / {window.first_ms(0.99):.2f} ms",
        "latency p50/p99": f"{window.latency_ms(0.5):.2f} / {window.latency_ms(0.99):.2f} ms",
        "whole p50/p99": f"{percentile(tally.whole, 0.5) * 1e3:.2f} / {percentile(tally.whole, 0.99) * 1e3:.2f} ms",
        "dropped": f"{tally.dropped}, errors {dict(tally.errors)}",
        "cores": f"server {window.cpu / seconds:.2f}, load {window.own_cpu / seconds:.2f}, else {window.elsewhere:.2f}",
    }
    return "\n".join(f"{name:16} {value}" for name, value in lines.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="http://127.0.0.1:7878/v1")
    parser.add_argument("--mode", default="stream", choices=MODES)
    parser.add_argument("--model", default="fake-n100-d0", help="see upstream.py for the shapes")
    parser.add_argument("--clients", "-c", type=int, default=8)
    parser.add_argument("--seconds", "-t", type=float, default=4)
    parser.add_argument("--warmup", type=float, default=1)
    parser.add_argument("--spread", type=float, default=0, help="seconds over which the clients start")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--response-id", default="", help="for get and replay")
    plan = Plan(**vars(parser.parse_args()))
    pid = machine.listener(urlsplit(plan.base).port or 80)
    if pid is not None:
        plan.processes = lambda: machine.family(pid)
    machine.raise_file_limit()
    print(describe(uvloop.run(measure(plan))))


if __name__ == "__main__":
    main()

"""The lines of the table that compare servers under load: what is asked of them, and which figures come of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from operator import attrgetter

import growth
import large
import nodes
import packing
from client import Client, Tally
from figures import Figure
from load import Plan, Window
from servers import Server
from sitting import Pick, Sitting, Windows, added, against, each, median

cpu_per_1000: Pick = attrgetter("cpu_per_1000")
cpu_per_request: Pick = attrgetter("cpu_per_request")


def first(quantile: float) -> Pick:
    return lambda window: window.first_ms(quantile)


def latency(quantile: float) -> Pick:
    return lambda window: window.latency_ms(quantile)


def _dropped(load: str, windows: Windows) -> Figure:
    counts = {name: sum(w.tally.dropped + w.tally.errors.total() for w in of) for name, of in windows.items()}
    return Figure(load, "dropped", "", counts["outlive"], 0, 0, apart={name: str(n) for name, n in counts.items()})


async def burst(sitting: Sitting) -> list[Figure]:
    seconds = 2 if sitting.quick else 4
    windows = await sitting.rounds(sitting.all, Plan(mode="stream", model="fake-n100-d0", seconds=seconds))
    ratio, apart = against(windows, cpu_per_1000), each(windows, cpu_per_1000, "ms")
    return [Figure("burst, 8 clients", "CPU per 1,000 tokens", "x", ratio, 1.25, 1.0, apart=apart)]


async def _streams_200(sitting: Sitting) -> Windows:
    if "200" not in sitting.remembered:
        plan = Plan(mode="stream", model="fake-n300-d20-t1", clients=200, seconds=6)
        sitting.remembered["200"] = await sitting.rounds(sitting.all, plan)
    return sitting.remembered["200"]


def delivered(streams: int, per_second: int) -> Pick:
    """Return the share of the tokens, in percent, that an upstream wrote and the clients had within the window."""
    return lambda window: 100 * window.tally.tokens / (streams * per_second * window.seconds)


async def streams_200(sitting: Sitting) -> list[Figure]:
    load, windows = "200 streams x 50/s", await _streams_200(sitting)
    late, start = latency(0.99), first(0.99)
    whole = delivered(200, 50)
    share, ratio = 100 * against(windows, whole), against(windows, cpu_per_1000)
    return [
        _dropped(load, windows),
        Figure(load, "delivered", "%", share, 99, 100, at_least=True, apart=each(windows, whole, "%")),
        Figure(load, "CPU per 1,000 tokens", "x", ratio, 1.15, 1.0, apart=each(windows, cpu_per_1000, "ms")),
        Figure(load, "event latency p99, added", "ms", added(windows, late), 15, 8, apart=each(windows, late, "ms")),
        Figure(load, "first token p99, added", "ms", added(windows, start), 40, 15, apart=each(windows, start, "ms")),
    ]


async def streams_20(sitting: Sitting) -> list[Figure]:
    """Starts are spread, so that this is a server at ease; what it adds is counted from the upstream itself."""
    seconds = 4 if sitting.quick else 8
    plan = Plan(mode="stream", model="fake-n100-d20-t1", clients=20, spread=2, seconds=seconds)
    windows = await sitting.rounds([sitting.upstream, *sitting.all], plan)
    figures = []
    for quantile, must, aim in ((0.5, 3, 1.5), (0.99, 8, 4)):
        pick = first(quantile)
        value, apart = added(windows, pick, to="upstream"), each(windows, pick, "ms")
        figures.append(
            Figure("20 streams", f"first token p{quantile * 100:.0f}, added", "ms", value, must, aim, apart=apart)
        )
    return figures


async def streams_1000(sitting: Sitting) -> list[Figure]:
    def memory(window: Window) -> float:
        return window.memory / 1000

    load = "1,000 streams x 10/s"
    plan = Plan(mode="stream", model="fake-n60-d100-t1", clients=1000, seconds=6, watch_memory=True)
    windows = await sitting.rounds(sitting.all, plan, fresh=True)
    before = await _streams_200(sitting)
    ratio = median(windows["outlive"], cpu_per_1000) / median(before["outlive"], cpu_per_1000)
    kilobytes, apart = median(windows["outlive"], memory), each(windows, memory, "KB")
    whole = delivered(1000, 10)
    share, shares = 100 * against(windows, whole), each(windows, whole, "%")
    return [
        _dropped(load, windows),
        Figure(load, "delivered", "%", share, 99.5, 100, at_least=True, apart=shares),
        Figure(load, "memory per stream", "KB", kilobytes, 80, 40, apart=apart),
        Figure(load, "CPU against 200 streams", "x", ratio, 1.5, 1.15, apart=each(windows, cpu_per_1000, "ms")),
    ]


async def plain(sitting: Sitting) -> list[Figure]:
    seconds = 2 if sitting.quick else 4
    windows = await sitting.rounds(sitting.all, Plan(mode="plain", model="fake-n1-d0", seconds=seconds))
    ratio, apart = against(windows, cpu_per_request), each(windows, cpu_per_request, "ms")
    return [Figure("stored plain request", "CPU", "x", ratio, 2.3, 1.5, apart=apart)]


async def _stored(server: Server, model: str) -> str:
    """The id of a finished response."""
    client = Client(server.base, server.prefix + model, Tally())
    answer = await client.counted(client.create())
    client.close()
    return str(answer.json()["id"])


async def get(sitting: Sitting) -> list[Figure]:
    windows: Windows = {}
    model, seconds = "fake-n100-d0", 2 if sitting.quick else 4
    for server in [sitting.outlive, *sitting.peers]:
        plan = Plan(mode="get", model=model, seconds=seconds, response_id=await _stored(server, model))
        windows |= await sitting.rounds([server], plan)
    value, apart = median(windows["outlive"], cpu_per_request), each(windows, cpu_per_request, "ms")
    return [Figure("GET of a response", "CPU", "ms", value, 0.4, 0.15, apart=apart)]


async def turn(sitting: Sitting) -> list[Figure]:
    """The making of each conversation is counted in."""
    plan = Plan(mode="conversation", model="fake-n1-d0", turns=5, seconds=2 if sitting.quick else 4)
    windows = await sitting.rounds([sitting.outlive, *sitting.peers], plan)
    value, apart = median(windows["outlive"], cpu_per_request), each(windows, cpu_per_request, "ms")
    return [Figure("turn in a conversation of 5", "CPU", "ms", value, 2.2, 1.1, apart=apart)]


async def resume(sitting: Sitting) -> list[Figure]:
    events = 2000 if sitting.quick else 10_000
    model = f"fake-n{events}-d0"
    plan = Plan(mode="replay", model=model, clients=1, seconds=3 if sitting.quick else 6)
    plan.response_id = await _stored(sitting.outlive, model)
    plan.after = (-1, events // 4, events // 2, events * 3 // 4, events - 10)
    windows = await sitting.rounds([sitting.outlive], plan)
    value, apart = median(windows["outlive"], first(0.99)), each(windows, first(0.5), "ms")
    apart = {name: f"p50 {written}" for name, written in apart.items()}
    return [Figure(f"resume, {events:,} events", "first replayed event p99", "ms", value, 20, 5, apart=apart)]


async def replay(sitting: Sitting) -> list[Figure]:
    """Replay whole responses of different lengths."""
    lengths = (100, 1_000, 10_000) if sitting.quick else (100, 1_000, 10_000, 100_000)
    costs = {}
    for events in lengths:
        model = f"fake-n{events}-d0"
        plan = Plan(mode="replay", model=model, clients=1, seconds=2 if sitting.quick else 4)
        plan.response_id = await _stored(sitting.outlive, model)
        windows = await sitting.rounds([sitting.outlive], plan)
        costs[events] = median(windows["outlive"], cpu_per_1000)
    shortest = costs[lengths[0]]
    return [
        Figure(
            "replay from the beginning",
            f"CPU per 1,000 of {events:,} events",
            "ms",
            cost,
            apart={"outlive": f"{cost / shortest:.2f}x of {lengths[0]}"},
        )
        for events, cost in costs.items()
    ]


LINES: dict[str, Callable[[Sitting], Awaitable[list[Figure]]]] = {
    "burst": burst,
    "200": streams_200,
    "20": streams_20,
    "1000": streams_1000,
    "plain": plain,
    "get": get,
    "turn": turn,
    "events": growth.events,
    "conversation": growth.conversation,
    "chain": growth.chain,
    "resume": resume,
    "replay": replay,
    "packing": packing.cost,
    "kept": packing.kept,
    "large": large.large,
    "postgres": nodes.one_node,
    "nodes": nodes.two_nodes,
    "lag": nodes.lag,
    "bell": nodes.bell,
}

"""Readings of the machine: CPU and memory of a process and its children, the disk's fsync time, cores, versions."""

from __future__ import annotations

import os
import platform
import re
import resource
import socket
import sqlite3
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

_PROC = Path("/proc")
_TICK = os.sysconf("SC_CLK_TCK")


def family(root: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            stat = _read(entry / "stat")
            if stat:  # the name, in brackets, may hold spaces
                children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found


def cpu_seconds(processes: Iterable[int]) -> float:
    """CPU time of all threads; schedstat counts nanoseconds where `stat` counts ticks of 10 ms."""
    total = 0
    for process in processes:
        for path in _list(_PROC / str(process) / "task"):
            total += int((_read(path / "schedstat") or "0").split()[0])
    return total / 1e9


def memory_kb(processes: Iterable[int]) -> int:
    """Resident memory."""
    total = 0
    for process in processes:
        match = re.search(r"^Rss:\s+(\d+)", _read(_PROC / str(process) / "smaps_rollup"), re.MULTILINE)
        total += int(match[1]) if match else 0
    return total


def busy_seconds() -> float:
    """Return the CPU seconds of all cores since the machine started."""
    values = [int(field) for field in _read(_PROC / "stat").split("\n", 1)[0].split()[1:9]]
    return (sum(values) - values[3] - values[4]) / _TICK


def listener(port: int) -> int | None:
    """The process that listens on a port."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in _read(_PROC / "net" / table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and any(_link(fd) in inodes for fd in _list(entry / "fd")):
            return int(entry.name)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process is gone
        return ""


def _list(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def split_cores() -> tuple[set[int], set[int]]:
    """The one core that every server gets, and the others, for load and upstream. One core alone is shared."""
    cores = sorted(os.sched_getaffinity(0))
    return {cores[-1]}, set(cores[:-1]) or {cores[-1]}


@contextmanager
def pinned(cores: set[int]) -> Iterator[None]:
    """Processes started within inherit these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def move(processes: Iterable[int], cores: set[int]) -> None:
    """Processes that run already; whatever they start goes with them."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.sched_setaffinity(process, cores)


def raise_file_limit() -> int:
    """A thousand streams are two thousand sockets in a server."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fsync_ms(directory: Path, seconds: float = 5.0) -> tuple[float, float, float]:
    """Median, 99th percentile and longest of appending 4 KB to a file and syncing it, as a commit to the WAL does."""
    path, took, until = directory / "fsync.probe", [], time.monotonic() + seconds
    with path.open("wb", buffering=0) as file:
        while time.monotonic() < until:
            file.write(bytes(4096))
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - started) * 1000)
            time.sleep(0.003)  # about as often as a busy server commits
    path.unlink()
    return statistics.median(took), statistics.quantiles(took, n=100)[98], max(took)


def file_system(directory: Path) -> str:
    """The type of the file system that a directory is on."""
    best, kind = "", "unknown"
    for line in _read(_PROC / "mounts").splitlines():
        mount, type_ = line.split()[1:3]
        if f"{directory.resolve()}/".startswith(mount.rstrip("/") + "/") and len(mount) >= len(best):
            best, kind = mount, type_
    return kind


def describe() -> dict[str, str]:
    """Describe the machine for a reader who compares numbers: processor, kernel, versions."""
    model = re.search(r"^model name\s*:\s*(.+)$", _read(_PROC / "cpuinfo"), re.MULTILINE)
    facts = {
        "processor": f"{model[1] if model else platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
    }
    for name in ("outlive", "uvicorn", "uvloop", "httptools", "aiohttp", "msgspec"):
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "from source"
    return facts

"""One attack on a fresh server while a victim streams: how long the victim waited, and how large the server grew."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

from tests.siege.victim import TOKEN_SECONDS, Victim
from tests.support.postgres import DATABASES
from tests.support.server import OutliveServer, free_port
from tests.support.upstream import FakeUpstream, Json, Pause, Script, Step, ending, say, text

VICTIM_KEY = "key-of-the-victim-0123456789"
ATTACKER_KEY = "key-of-the-attacker-0123456789"
# What must hold for every attack, with default settings.
MAX_DELAY_SECONDS = 1.0
MAX_MEMORY_MB = 600

CONFIG = """
[keys]
victim = "{victim}"
attacker = "{attacker}"

[upstreams.usual]
url = "{usual}"

[upstreams.steady]
url = "{steady}"

[upstreams.hostile]
url = "{hostile}/v1"
"""


@dataclass
class Outcome:
    attack: str
    database: str
    delay: float  # seconds, the victim's longest
    memory: float  # MB, the most that the server ever had
    asked: int
    failed: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)  # of the event loop that took long, as the server's watchdog says

    @property
    def faults(self) -> list[str]:
        faults = [*self.failed]
        if self.delay > MAX_DELAY_SECONDS:
            faults.append(f"the victim waited {self.delay:.2f} s")
        if self.memory > MAX_MEMORY_MB:
            faults.append(f"the server grew to {self.memory:.0f} MB")
        return faults


def besiege(folder: Path, attack: str, database: str, seconds: float) -> Outcome:
    """Run one attack against a new server with default settings."""
    with FakeUpstream() as upstream:
        stream: list[Step] = [
            step for _ in range(int(seconds + 120) * 20) for step in (text("x "), Pause(TOKEN_SECONDS))
        ]
        model = upstream.model([*stream, *ending()])
        hostile = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "outlive.toml").write_text(
            CONFIG.format(
                victim=VICTIM_KEY,
                attacker=ATTACKER_KEY,
                usual=_usual_upstream(),
                steady=upstream.url,
                hostile=f"http://127.0.0.1:{hostile}",
            )
        )
        url = DATABASES.create() if database == "postgres" else None
        seal = folder / "seal.key"
        seal.write_text("siege-siege-siege-siege-siege-siege-siege!")
        seal.chmod(0o600)
        flags = ["--config", str(folder / "outlive.toml")]
        flags += ["--seal-key-file", str(seal)] if database == "postgres" else []
        with OutliveServer(folder, None, *flags, database_url=url) as server:
            with Victim(server.port, VICTIM_KEY, f"steady/{model}") as victim:
                time.sleep(0.5)
                _attack(attack, server.port, hostile, seconds)
                time.sleep(0.5)
            healthy = server.client.get("/healthz").status == 200
            outcome = Outcome(attack, database, victim.longest_delay, _peak_mb(server.pid), victim.asked, victim.failed)
            outcome.steps += [line for line in server.log.splitlines() if "event loop blocked" in line]
    if not healthy:
        outcome.failed.append("the server does not answer any more")
    return outcome


@cache
def _usual_upstream() -> str:
    """Serve what attacks ask, in a process of its own: the victim must not wait for it. Returns its URL."""
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True).start()
    url: str = ours.recv()
    return url


def _serve(parent: Connection) -> None:
    with FakeUpstream() as upstream:
        upstream.otherwise = _answer
        parent.send(upstream.url)
        threading.Event().wait()


def _answer(body: Json) -> Script:
    """Answer what attacks ask: a long answer, one that takes its time, or a short one."""
    if body["model"] == "long":
        return [*(text("x" * 10_000) for _ in range(2000)), *ending()]
    return [Pause(30), *ending()] if body["model"] == "slow" else say("Hello", " there")


def _attack(name: str, port: int, hostile: int, seconds: float) -> None:
    command = [sys.executable, "-m", "tests.siege.attacker", name, "--port", str(port), "--key", ATTACKER_KEY]
    command += ["--upstream", str(hostile), "--seconds", str(seconds)]
    subprocess.run(command, timeout=seconds + 120, check=True)


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000

"""The parts of a client program: checks, each of one feature, and a report with one JSON line per check."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import secrets
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

SECONDS = 120
# One pixel, as an image for models that can see.
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
# The reasoning of every `thinker`.
THOUGHT = "They want an answer."
_PROCESS = secrets.token_hex(4)
_numbers = itertools.count(1)

Run = Callable[["Target"], Awaitable[None] | None]


@dataclass(frozen=True)
class Target:
    """The servers that a check runs against: the address of the server, and of the control server."""

    base_url: str
    control_url: str

    def model(self, kind: str = "plain") -> str:
        """Return a model name of its own. A `thinker` reasons first, a `held` one stops in the middle of its answer."""
        return f"{kind}-{_PROCESS}-{next(_numbers)}"

    def requests(self, model: str) -> list[dict[str, Any]]:
        """Return every request that the model received, the oldest first."""
        found: list[dict[str, Any]] = self._get("requests", model=model)
        return found

    def texts(self, model: str, number: int = -1) -> list[str]:
        """Return the texts of the messages in one of its requests."""
        return [_text_of(message) for message in self.requests(model)[number]["messages"]]

    def release(self, model: str) -> None:
        """Wait until the held model is held, and let it go on."""
        self._get("release", model=model)

    def make_cut_url(self, frames: int, how: str = "reset") -> str:
        """Return a base URL of the server whose first answer is cut after so many events (`clean`: as if complete)."""
        found: str = self._get("cut", frames=frames, how=how)
        return found

    def _get(self, path: str, **query: Any) -> Any:
        with urlopen(f"{self.control_url}/{path}?{urlencode(query)}", timeout=SECONDS) as answer:
            return json.load(answer)


@dataclass
class Refused:
    error: Any = None


@contextmanager
def refused(kind: type[Exception]) -> Iterator[Refused]:
    """Expect that kind of error of the block, and keep it."""
    found = Refused()
    try:
        yield found
    except kind as error:
        found.error = error
    else:
        raise AssertionError(f"no {kind.__name__}")


@dataclass(frozen=True)
class Check:
    feature: str
    sentence: str
    run: Run

    def perform(self, target: Target, loop: asyncio.Runner) -> None:
        """Run the check, which raises on failure. All checks of a program share a loop, as in a real program."""
        with _limit(SECONDS):
            outcome = self.run(target)
            if inspect.iscoroutine(outcome):
                loop.run(outcome)


@dataclass
class Client:
    """One client of the matrix: its packages, its checks, and the features that it lacks."""

    name: str
    packages: tuple[str, ...]
    checks: list[Check] = field(default_factory=list)
    lacks: dict[str, str] = field(default_factory=dict)

    def check(self, feature: str, sentence: str) -> Callable[[Run], Run]:
        def add(run: Run) -> Run:
            self.checks.append(Check(feature, sentence, run))
            return run

        return add

    def lack(self, feature: str, why: str) -> None:
        self.lacks[feature] = why

    def lack_each(self, features: Iterable[str], why: str) -> None:
        """Give the same reason for several features."""
        for feature in features:
            self.lack(feature, why)

    def main(self) -> None:
        """Perform every check against the server and the control server named on the command line."""
        target = Target(*sys.argv[1:3])
        self._report(packages={package: version(package) for package in self.packages}, lacks=self.lacks)
        with asyncio.Runner() as loop:
            for check in self.checks:
                error = ""
                try:
                    check.perform(target, loop)
                except Exception:
                    error = traceback.format_exc()
                self._report(feature=check.feature, sentence=check.sentence, error=error)

    def _report(self, **fields: Any) -> None:
        # On a line of its own, whatever the client has printed before.
        print("\n" + json.dumps({"client": self.name, **fields}), flush=True)


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    def time_out(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, time_out)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

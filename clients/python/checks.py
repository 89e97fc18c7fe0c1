"""What a client program is made of: checks, each of one feature, and a report of one JSON line per check."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import secrets
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

SECONDS = 60
# One pixel, as an image for models that can see.
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
# What a `thinker` thinks, whatever it is asked.
THOUGHT = "They want an answer."
_PROCESS = secrets.token_hex(4)
_numbers = itertools.count(1)

Run = Callable[["Place"], Awaitable[None] | None]


@dataclass(frozen=True)
class Place:
    """Where a check takes place: the server's address, and the desk's."""

    base_url: str
    desk: str

    def model(self, nature: str = "plain") -> str:
        """The name of a model that nobody else asks. A `thinker` reasons first, a `held` one stops half way."""
        return f"{nature}-{_PROCESS}-{next(_numbers)}"

    def asked(self, model: str) -> list[dict[str, Any]]:
        """Every request that the model got, oldest first."""
        found: list[dict[str, Any]] = self._get("asked", model=model)
        return found

    def said(self, model: str, number: int = -1) -> list[str]:
        """The words of the messages in one of its requests."""
        return [_words(message) for message in self.asked(model)[number]["messages"]]

    def open(self, model: str) -> None:
        """Wait until the held model is held, and let it go on."""
        self._get("open", model=model)

    def cut(self, frames: int, how: str = "reset") -> str:
        """A base URL of the same server whose first answer breaks off after so many events (`clean`: seems to end)."""
        found: str = self._get("cut", frames=frames, how=how)
        return found

    def _get(self, wish: str, **words: Any) -> Any:
        with urlopen(f"{self.desk}/{wish}?{urlencode(words)}", timeout=SECONDS) as answer:
            return json.load(answer)


@dataclass
class Refused:
    error: Any = None


@contextmanager
def refused(kind: type[Exception]) -> Iterator[Refused]:
    """What is inside must raise that kind of error, which is then there to be looked at."""
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

    def perform(self, place: Place, loop: asyncio.Runner) -> None:
        """Raise whatever is wrong. All checks of a program share a loop, as all requests of a real one do."""
        with _limit(SECONDS):
            outcome = self.run(place)
            if inspect.iscoroutine(outcome):
                loop.run(outcome)


@dataclass
class Client:
    """One client of the matrix: the packages it is made of, its checks, and what it has no means for."""

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

    def main(self) -> None:
        """Perform every check against the server and the desk named on the command line."""
        place = Place(*sys.argv[1:3])
        self._report(packages={package: version(package) for package in self.packages}, lacks=self.lacks)
        with asyncio.Runner() as loop:
            for check in self.checks:
                error = ""
                try:
                    check.perform(place, loop)
                except Exception:
                    error = traceback.format_exc()
                self._report(feature=check.feature, sentence=check.sentence, error=error)

    def _report(self, **fields: Any) -> None:
        # On a line of its own whatever the client has printed meanwhile.
        print("\n" + json.dumps({"client": self.name, **fields}), flush=True)


def _words(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

"""A JavaScript runtime that runs code of tests: each call is the body of an async function."""

from __future__ import annotations

import itertools
import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "src" / "outlive" / "console" / "outlive.js"
RUNNER = ROOT / "tests" / "js" / "runner.mjs"
TIMEOUT_SECONDS = 60.0


def find_program(name: str) -> str:
    """Return the path of a program that tests need; skip the test if it is missing."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}, which `make test` installs where it can")
    return found


def find_installed(name: str) -> Path:
    """Return the path of a program of an npm package that `make test` installs; skip the test if it is missing."""
    found = ROOT / "tests" / "js" / "node_modules" / ".bin" / name
    if not found.exists():
        pytest.skip(f"needs the npm package with {name} in tests/js: `make test` installs it")
    return found


class JavaScriptError(Exception):
    """An error that the code threw; `fields` are its properties."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(f"{fields['name']}: {fields['message']}\n{fields['stack']}")
        self.fields = fields


class Call:
    """One run of a body. `emitted` has what the code gave to `emit`."""

    def __init__(self) -> None:
        self.emitted: queue.Queue[Any] = queue.Queue()
        self.ended = threading.Event()
        self.answer: dict[str, Any] = {}

    def result(self, timeout: float = TIMEOUT_SECONDS) -> Any:
        assert self.ended.wait(timeout), "the code has not ended"
        if "error" in self.answer:
            raise JavaScriptError(self.answer["error"])
        return self.answer["result"]

    def next_emitted(self) -> Any:
        return self.emitted.get(timeout=TIMEOUT_SECONDS)


class JavaScript:
    """A process of a runtime. Bodies have `library` (the module), `emit`, and the arguments by name."""

    def __init__(self, *command: str, library: str = LIBRARY.as_uri(), runner: Path = RUNNER) -> None:
        self._command: Sequence[str] = [*command, str(runner), library]
        self._numbers = itertools.count()
        self._calls: dict[int, Call] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def start(self, code: str, /, **args: Any) -> Call:
        call = Call()
        with self._lock:
            number = next(self._numbers)
            self._calls[number] = call
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"call": number, "body": code, "args": args}) + "\n")
        return call

    def run(self, code: str, /, **args: Any) -> Any:
        """Run a body and return its result. Raises JavaScriptError if it throws."""
        return self.start(code, **args).result()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            call = self._calls[message["call"]]
            if "emitted" in message:
                call.emitted.put(message["emitted"])
            else:
                call.answer = message
                call.ended.set()
        for call in self._calls.values():
            if not call.ended.is_set():
                call.answer = {"error": {"name": "Exit", "message": "the runtime has exited", "stack": ""}}
                call.ended.set()

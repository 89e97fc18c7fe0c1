"""The log: one line per record, as text or JSON, with fields of fixed names and never a value of an error."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator
from logging.handlers import QueueHandler, QueueListener
from queue import Full, Queue
from typing import Any, Literal, TextIO

import msgspec

from outlive.core.errors import SettingsError

log = logging.getLogger("outlive")

LogFormat = Literal["text", "json"]

# Names that `extra` of a log call may have, in the order in which a line shows them; docs/how-to/observe.md lists them.
FIELDS = (
    "node", "request_id", "response_id", "conversation_id", "trace_id", "owner", "address", "model", "upstream", "tool",
    "method", "path", "status", "code", "disconnected", "duration_ms", "first_token_ms", "input_tokens",
    "output_tokens", "attempts", "count",
)  # fmt: skip
# Characters of one value: clients choose some of them.
MAX_VALUE = 256
# Lines that wait to be written; more are dropped and counted.
MAX_LINES = 10_000
# Seconds that the exit waits for the last lines to be written.
FLUSH_SECONDS = 1.0
# Loggers of libraries that users' agents and tools use: below WARNING they log what is sent to models.
_VERBOSE = ("openai", "httpx", "httpcore", "httpx2", "httpcore2", "mcp", "client", "anthropic")


class Formatter(logging.Formatter):
    """A line of text: the message, then `name=value` for each field.

    Leaves out the messages of errors, which may contain a caller's content or a secret (D4).
    """

    node = ""  # of this process, which JSON lines show

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's own name)
        fields = "".join(f" {name}={_quote(value)}" for name, value in read_fields(record))
        return super().formatMessage(record) + fields

    def formatException(self, ei: Any) -> str:  # noqa: N802 (logging's own name)
        return "\n".join(_describe(each) for each in _chain(ei[1]))


class JsonFormatter(Formatter):
    """A line of JSON, with the node's name once that is known."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{at}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {"node": self.node, **dict(read_fields(record))} if self.node else dict(read_fields(record))
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def read_fields(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a record that have a value, in their order."""
    for name in FIELDS:
        value = record.__dict__.get(name)
        if value is not None and value != "":
            yield name, value if isinstance(value, int | float) else str(value)[:MAX_VALUE]


class LogWriter(QueueHandler):
    """Has lines written by a thread: while a full pipe takes none, the event loop must go on."""

    queue: Queue[logging.LogRecord]

    def __init__(self, output: TextIO) -> None:
        super().__init__(Queue(MAX_LINES))
        self._dropped = 0
        QueueListener(self.queue, logging.StreamHandler(output)).start()

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except Full:
            self._dropped += 1
            return
        if self._dropped and self.queue.qsize() < MAX_LINES // 2:
            dropped, self._dropped = self._dropped, 0
            log.warning("log lines were dropped: they came faster than they were read", extra={"count": dropped})

    def flush(self) -> None:
        """Wait until all lines are written, FLUSH_SECONDS at most."""
        until = time.monotonic() + FLUSH_SECONDS
        while self.queue.unfinished_tasks and time.monotonic() < until:
            time.sleep(0.005)


def make_formatter(form: LogFormat) -> Formatter:
    """Return the formatter of a log."""
    return JsonFormatter() if form == "json" else Formatter()


def start_log(level: str, form: LogFormat) -> None:
    """Log to standard error from this level on."""
    output = LogWriter(sys.stderr)
    output.setFormatter(make_formatter(form))
    logging.basicConfig(level=level.upper(), handlers=[output])
    for name in _VERBOSE:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


def start_security_log(path: str) -> None:
    """Write the security log, and warnings about the event loop, to a file as lines of JSON. Raises SettingsError."""
    try:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w")
    except OSError as error:
        raise SettingsError(f"Cannot write the security log {path}: {error.strerror}.") from error
    output = LogWriter(file)
    output.setFormatter(JsonFormatter())
    security = logging.getLogger("outlive.security")
    security.setLevel(logging.INFO)
    security.propagate = False
    for logger in (security, logging.getLogger("outlive.watchdog")):
        logger.addHandler(output)


def log_stray(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of a task that no code awaits. The loop's own handler would print the task with it."""
    log.error("%s", context.get("message", "unhandled error in a task"), exc_info=context.get("exception"))


def _quote(value: object) -> str:
    """Return a value that a reader can tell from what follows it, on one line."""
    text = str(value)
    plain = text.isascii() and text.isprintable() and not any(mark in text for mark in ' "=')
    return text if plain else msgspec.json.encode(text).decode()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the causes of an error, the first one first, and the error itself."""
    if error is not None:
        yield from _chain(error.__cause__ or (None if error.__suppress_context__ else error.__context__))
        yield error


def _describe(error: BaseException) -> str:
    return "".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__

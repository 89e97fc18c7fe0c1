"""The log: one line per record, as text or JSON, with fields of fixed names and never a value of an error."""

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from functools import lru_cache
from logging.handlers import QueueHandler
from queue import SimpleQueue
from typing import Any, Literal, TextIO

import msgspec

from outlive.core.errors import SettingsError

log = logging.getLogger("outlive")

LogFormat = Literal["text", "json"]

# Names that `extra` of a log call may have, in the order in which a line shows them; docs/how-to/observe.md lists them.
FIELDS = (
    "node", "request_id", "response_id", "conversation_id", "trace_id", "owner", "end_user", "address", "key_id",
    "endpoint_id", "model", "upstream", "tool", "method", "path", "status", "code", "disconnected",
    "duration_ms", "first_token_ms", "input_tokens", "output_tokens", "attempts", "count",
)  # fmt: skip
# Characters of one value: clients choose some of them.
MAX_VALUE = 256
# Lines that wait to be written; more are dropped and counted.
MAX_LINES = 10_000
# Seconds that the thread waits after each write, for more to write at once.
PAUSE_SECONDS = 0.01
# Seconds that the exit waits for the last lines to be written.
FLUSH_SECONDS = 1.0
# Loggers of libraries that users' agents and tools use: below WARNING they log what is sent to models.
_VERBOSE = ("openai", "httpx", "httpcore", "httpx2", "httpcore2", "mcp", "client", "anthropic")
_PLAIN = frozenset({int, bool, float})  # types of values that JSON has, too
_WORD = bytes({*range(33, 127)} - {*b'"='})  # of a value that a reader can tell from what follows it, on one line


class Formatter(logging.Formatter):
    """A line of text: the message, then `name=value` for each field.

    Leaves out the messages of errors, which may contain a caller's content or a secret (D4).
    """

    node = ""  # of this process, which JSON lines show

    def format(self, record: logging.LogRecord) -> str:
        given = read_fields(record).items()
        fields = [f" {name}={str(value)[:MAX_VALUE]}" for name, value in given if value is not None and value != ""]
        shown = "".join(fields)
        # Nearly always, no value has a character after which a reader could not tell it from the next field.
        if shown.encode(errors="surrogatepass").translate(None, _WORD) != b" =" * len(fields):
            shown = "".join(map(_quote, fields))
        at = _render_local(int(record.created))
        error = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{at},{int(record.msecs):03} {record.levelname} {record.getMessage()}{shown}{error}"

    def formatException(self, ei: Any) -> str:  # noqa: N802 (logging's own name)
        return "\n".join(_describe(ei[1]))


class JsonFormatter(Formatter):
    """A line of JSON, with the node's name once that is known."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": f"{_render_utc(int(record.created))}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **({"node": self.node} if self.node else {}),
        }
        for name, value in read_fields(record).items():
            if value is not None and value != "":
                line[name] = value if type(value) in _PLAIN else str(value)[:MAX_VALUE]
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def read_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record, in their order: those of `extra`, or of `fields` in it."""
    given = record.__dict__
    return given.get("fields") or {name: given[name] for name in FIELDS if name in given}


class LogWriter(QueueHandler):
    """Has lines written by a thread: while a full pipe takes none, the event loop must go on. Lines that come soon
    after one another are written together."""

    queue: SimpleQueue[str | threading.Event]
    handle = QueueHandler.emit  # type: ignore[assignment]  # without the lock of handlers: the queue has its own

    def __init__(self, output: TextIO, formatter: Formatter) -> None:
        super().__init__(SimpleQueue())
        self.formatter = formatter
        self.prepare = formatter.format  # type: ignore[method-assign]
        self._writing = 0  # lines taken from the queue and not written yet
        self._dropped = 0
        threading.Thread(target=self._write, args=(output,), daemon=True).start()

    def enqueue(self, line: Any) -> None:
        waiting = self.queue.qsize() + self._writing
        if waiting >= MAX_LINES:
            self._dropped += 1
            return
        self.queue.put(line)
        if self._dropped and waiting < MAX_LINES // 2:
            dropped, self._dropped = self._dropped, 0
            log.warning("log lines were dropped: they came faster than they were read", extra={"count": dropped})

    def flush(self) -> None:
        """Wait until all lines are written, FLUSH_SECONDS at most."""
        written = threading.Event()
        self.queue.put(written)
        written.wait(FLUSH_SECONDS)

    def _write(self, output: TextIO) -> None:
        while True:
            taken = [self.queue.get()]
            self._writing = self.queue.qsize()
            taken += [self.queue.get() for _ in range(self._writing)]
            lines = [each for each in taken if type(each) is str]
            text = "\n".join([*lines, ""]).encode(errors="backslashreplace")
            with contextlib.suppress(OSError, ValueError):  # no one reads it any more, or it is closed
                # Not by `output.write`, which keeps what cannot be written: the process would end with an error for it.
                while text:
                    text = text[os.write(output.fileno(), text) :]
            self._writing = 0
            for each in taken if len(lines) < len(taken) else ():
                if isinstance(each, threading.Event):
                    each.set()
            time.sleep(PAUSE_SECONDS)


class Record(logging.LogRecord):
    """A record without what lines do not show: to find the place in the code takes as long as all the rest."""

    _unknown = logging.makeLogRecord({}).__dict__

    def __init__(self, name: str, level: int, path: str, line: int, *message: Any, **more: Any) -> None:
        self.__dict__ = self._unknown.copy()
        self.created = now = time.time()
        self.msecs = int(now % 1 * 1000) + 0.0
        self.name, self.levelno, self.levelname = name, level, logging.getLevelName(level)
        self.msg, args, self.exc_info = message[:3]
        self.args = args[0] if len(args) == 1 and isinstance(args[0], dict) else args


def start_log(level: str, form: LogFormat) -> None:
    """Log to standard error from this level on."""
    output = LogWriter(sys.stderr, JsonFormatter() if form == "json" else Formatter())
    logging._srcfile = None
    logging.setLogRecordFactory(Record)
    logging.basicConfig(level=level.upper(), handlers=[output])
    for name in _VERBOSE:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


def start_security_log(path: str) -> None:
    """Write the security log, and warnings about the event loop, to a file as lines of JSON. Raises SettingsError."""
    try:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w")
    except OSError as error:
        raise SettingsError(f"Cannot write the security log {path}: {error.strerror}.") from error
    output = LogWriter(file, JsonFormatter())
    security = logging.getLogger("outlive.security")
    security.setLevel(logging.INFO)
    security.propagate = False
    for logger in (security, logging.getLogger("outlive.watchdog")):
        logger.addHandler(output)


def log_stray(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of a task that no code awaits. The loop's own handler would print the task with it."""
    log.error("%s", context.get("message", "unhandled error in a task"), exc_info=context.get("exception"))


@lru_cache(maxsize=1)
def _render_local(second: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))


@lru_cache(maxsize=1)
def _render_utc(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def _quote(field: str) -> str:
    """Return a field with its value in quotes if that is no word."""
    name, _, value = field.partition("=")
    is_word = not value.encode(errors="surrogatepass").translate(None, _WORD)
    return field if is_word else f"{name}={msgspec.json.encode(value).decode()}"


def _describe(error: BaseException | None) -> Iterator[str]:
    """Describe the causes of an error, the first one first, and the error itself."""
    if error is not None:
        yield from _describe(error.__cause__ or (None if error.__suppress_context__ else error.__context__))
        yield "".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__

"""Logging that names the place of an error and never its values."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

log = logging.getLogger("outlive")

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


# Loggers of libraries that users' agents and tools use: below WARNING they log what is sent to models.
_VERBOSE = ("openai", "httpx", "httpcore", "httpx2", "httpcore2", "mcp", "client", "anthropic")


class Formatter(logging.Formatter):
    """Leaves out the messages of errors, which may contain a caller's content or a secret (D4)."""

    def formatException(self, ei: ExcInfo) -> str:  # noqa: N802 (logging's own name)
        return "\n".join(_describe(each) for each in _chain(ei[1]))


def start(level: str) -> None:
    """Log to standard error from this level on."""
    output = logging.StreamHandler()
    output.setFormatter(Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[output])
    for name in _VERBOSE:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


def log_stray(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of a task that no code awaits. The loop's own handler would print the task with it."""
    log.error("%s", context.get("message", "unhandled error in a task"), exc_info=context.get("exception"))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the causes of an error, the first one first, and the error itself."""
    if error is not None:
        yield from _chain(error.__cause__ or (None if error.__suppress_context__ else error.__context__))
        yield error


def _describe(error: BaseException) -> str:
    return "".join(traceback.format_tb(error.__traceback__)) + type(error).__qualname__

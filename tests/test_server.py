"""Logged errors have their place, and nothing that a caller sent."""

from __future__ import annotations

import asyncio
import io
import logging

import pytest

from outlive import server

CANARY = "canary-in-the-log"


def fail() -> None:
    try:
        raise KeyError(CANARY)
    except KeyError as error:
        raise ValueError(f"bad: {CANARY}") from error


def format_error(message: str, error: BaseException) -> str:
    record = logging.LogRecord(
        "x", logging.ERROR, __file__, 1, message, None, (type(error), error, error.__traceback__)
    )
    return server.Formatter("%(message)s").format(record)


def test_a_logged_error_has_its_lines_and_types_but_not_its_messages() -> None:
    with pytest.raises(ValueError, match=CANARY) as caught:
        fail()
    line = format_error("it failed", caught.value)
    assert CANARY not in line
    assert "it failed" in line
    assert line.index("KeyError") < line.index("ValueError")
    assert "in fail" in line


def test_an_unhandled_error_of_a_task_is_logged_without_its_message() -> None:
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(server.Formatter("%(message)s"))
    server.log.addHandler(handler)
    loop = asyncio.new_event_loop()
    try:
        error = ValueError(CANARY)
        server.log_stray(loop, {"message": "Task exception was never retrieved", "exception": error, "task": error})
    finally:
        server.log.removeHandler(handler)
        loop.close()
    assert CANARY not in output.getvalue()
    assert "never retrieved" in output.getvalue()
    assert "ValueError" in output.getvalue()

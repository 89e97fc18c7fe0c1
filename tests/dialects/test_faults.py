"""Upstream errors are classified by code, status and message."""

from __future__ import annotations

import pytest

from outlive.core.events import Json
from outlive.dialects.faults import read_fault

# Errors of servers for a context that does not fit: some have a code, most only a message.
TOO_LONG: list[tuple[Json, int | None]] = [
    ({"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}, 400),
    ({"message": "This model's maximum context length is 8192 tokens. However, you requested 9000."}, 400),
    ({"type": "exceed_context_size_error", "message": "request (3031 tokens) exceeds the available context size"}, 400),
    (
        {"message": "The decoder prompt (length 5000) is longer than the maximum model length (max_model_len) of 4096"},
        400,
    ),
    ({"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"}, 400),
    ({"message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."}, 400),
    (
        {"message": "Trying to keep the first 5000 tokens when context the overflows, with a context length of 4096"},
        400,
    ),
    ({"message": "input is too long for requested model"}, 413),
    ({"code": "context_length_exceeded", "message": "in the middle of a stream"}, None),
]

OTHERS: list[tuple[Json, int | None]] = [
    ({"message": "Invalid value for 'temperature'."}, 400),
    ({"message": "The image is too large."}, 400),
    ({"message": "upstream says 500: context length"}, 500),
    ({"message": "Rate limit reached for tokens per minute."}, 429),
    ({"message": "The model does not exist."}, 404),
]


@pytest.mark.parametrize(("error", "status"), TOO_LONG)
def test_a_too_long_context_is_recognised_by_code_or_message(error: Json, status: int | None) -> None:
    fault = read_fault(error, status)
    assert fault.too_long
    assert (fault.code, fault.retryable) == ("invalid_prompt", False)


@pytest.mark.parametrize(("error", "status"), OTHERS)
def test_other_errors_are_not_too_long(error: Json, status: int | None) -> None:
    assert not read_fault(error, status).too_long

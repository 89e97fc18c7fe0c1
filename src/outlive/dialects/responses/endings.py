"""The end of a Responses server's answer: its terminal event, errors and usage, translated to ours."""

from __future__ import annotations

from typing import Literal

import msgspec

from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.grammar import TERMINAL_STATUSES
from outlive.core.recovery import OpenText
from outlive.dialects.faults import read_fault
from outlive.dialects.translator import decode_answer, not_an_answer, read_count
from outlive.ports.backend import Ending

# The codes of `response.error` that clients know, besides those that `faults` chooses by cause. Only those in the
# second list may go away when the request is repeated.
_CODES = frozenset(
    {
        "bio_policy",
        "data_residency_mismatch",
        "empty_image_file",
        "failed_to_download_image",
        "image_content_policy_violation",
        "image_file_not_found",
        "image_file_too_large",
        "image_parse_error",
        "image_too_large",
        "image_too_small",
        "invalid_base64_image",
        "invalid_image",
        "invalid_image_format",
        "invalid_image_mode",
        "invalid_image_url",
        "misalignment_policy_violation",
        "unsupported_image_media_type",
        "vector_store_timeout",
    }
)
_PASSING = frozenset({"failed_to_download_image", "vector_store_timeout"})


def to_event(body: bytes) -> bytes:
    """Make the terminal event of an answer that came whole, although a stream was asked for. Raises UpstreamFault."""
    response = decode_answer(body, "a response")
    if response.get("object") != "response" and response.get("error"):
        raise read_failure(response)
    if not isinstance(response.get("output"), list):
        raise not_an_answer("a response")
    return msgspec.json.encode({"type": f"response.{response.get('status') or 'completed'}", "response": response})


def read_ending(type_: str, response: Json, resume: OpenText | None, limit: int | None = None) -> Ending:
    """Translate a terminal event. Raises UpstreamFault when the answer failed or was cancelled.

    `limit` is the most tokens that could be written, where the server does not say that it was reached.
    """
    given = response.get("status")
    status = given if given in TERMINAL_STATUSES else type_.removeprefix("response.")
    if status == "failed":
        raise read_failure({"response": response})
    if status == "cancelled":
        raise UpstreamFault("The model's server cancelled the answer.", retryable=False)
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) and status == "incomplete" else None
    usage = _read_usage(response["usage"], resume) if isinstance(response.get("usage"), dict) else None
    if status == "completed" and limit is not None and usage is not None and usage["output_tokens"] >= limit:
        status, reason = "incomplete", "max_output_tokens"
    kept: Literal["completed", "incomplete"] = "incomplete" if status == "incomplete" else "completed"
    return Ending(
        kept,
        reason if isinstance(reason, str) else None,
        usage,
        _read_text(response.get("model")),
        _read_text(response.get("service_tier")),
    )


def read_failure(event: Json) -> UpstreamFault:
    """Return the fault in an error event, flat or nested, or in a failed response."""
    response = event.get("response")
    error = response.get("error") if isinstance(response, dict) else event.get("error")
    if not isinstance(error, dict):
        # A flat one has its code and message in the event itself.
        error = {"code": event.get("code"), "message": event.get("message") or error}
    fault = read_fault(error)
    code = error.get("code")
    if code in _CODES:
        fault.code = code
        fault.retryable = code in _PASSING
    return fault


def _read_usage(usage: Json, resume: OpenText | None) -> Json:
    """Complete the usage with the fields that clients read; what an earlier attempt wrote is counted, too."""
    given, before = read_count(usage, "input_tokens"), resume.deltas if resume is not None else 0
    written = read_count(usage, "output_tokens") + before
    read, made = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    return {
        **usage,
        "input_tokens": given,
        "input_tokens_details": {
            "cached_tokens": 0,
            "cache_write_tokens": 0,
            **(read if isinstance(read, dict) else {}),
        },
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0, **(made if isinstance(made, dict) else {})},
        "total_tokens": (read_count(usage, "total_tokens") or given + written - before) + before,
    }


def _read_text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None

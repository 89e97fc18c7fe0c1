"""Reading of upstream errors: the code of the fault, and if a retry may help."""

import re
from collections.abc import Callable

from outlive.core.errors import UpstreamFault

# Reads the error in an answer whose status was 200.
ReadFault = Callable[[object], UpstreamFault]

# Words in an error's `code` or `type`, in lower case, by cause. The first that matches counts.
_LENGTH = ("context_length", "exceed_context")
_LENGTH_MESSAGE = re.compile(
    r"context (length|window|size)|(prompt|input|request|context)[^.]{0,40} too (long|large|many tokens)|max_model_len"
    r"|maximum (prompt|input) length|exceeds? the (maximum|max)[^.]{0,30} tokens",
    re.IGNORECASE,
)
_QUOTA = ("insufficient_quota", "billing", "credit")
_RATE = ("rate_limit", "ratelimit", "too_many", "toomany", "throttl", "resource_exhausted")
_KEY = ("api_key", "authentication", "permission", "unauthorized", "forbidden")
_PROMPT = ("invalid", "badrequest", "bad_request", "too_large", "too_long", "not_found", "unsupported")

_MESSAGES = ("message", "detail", "code", "type")  # fields in which a message may be, the best first
_MOST_CHARACTERS = 1000  # of an upstream's message; some send a whole page
_RETRYABLE_STATUSES = frozenset({408, 409, 425, 429})


def read_fault(error: object, status: int | None = None, retry_after: float | None = None) -> UpstreamFault:
    """Return the fault for an error object, or whatever stands in its place; `status` is the HTTP answer's, if any."""
    fields = error if isinstance(error, dict) else {}
    words = f"{fields.get('code')} {fields.get('type')}".lower()
    # An error in a stream may have an HTTP status as its `code` or `status`.
    numbers = (int(text) for text in (str(fields.get("code")), str(fields.get("status"))) if text.isdecimal())
    cause = status if status is not None else next((number for number in numbers if 400 <= number < 600), None)
    given = error if not isinstance(error, dict) else next(filter(None, map(error.get, _MESSAGES)), None)
    message = " ".join(str(given or "").split()) or "no reason was given"
    if len(message) > _MOST_CHARACTERS:
        message = message[:_MOST_CHARACTERS] + " ..."
    # Few servers have a code for a context that does not fit into the model's window; most have it in their message.
    too_long = any(word in words for word in _LENGTH)
    too_long = too_long or (cause in (None, 400, 413, 422) and _LENGTH_MESSAGE.search(message) is not None)
    code, retryable = ("invalid_prompt", False) if too_long else _classify(words, cause)
    about = f"The model's server {f'answered {status}' if status else 'failed'}: {message}"
    return UpstreamFault(
        about, code=code, status=cause, retryable=retryable, retry_after=retry_after, too_long=too_long
    )


def _classify(words: str, status: int | None) -> tuple[str, bool]:
    if any(word in words for word in _QUOTA):
        return "rate_limit_exceeded", False
    if status == 429 or any(word in words for word in _RATE):
        return "rate_limit_exceeded", True
    if any(word in words for word in _KEY):
        return "server_error", False
    if status is not None:
        if status >= 500 or status in _RETRYABLE_STATUSES:
            return "server_error", True
        return ("invalid_prompt" if status in (400, 404, 413, 422) else "server_error"), False
    if any(word in words for word in _PROMPT):
        return "invalid_prompt", False
    return "server_error", True

"""Errors on the wire: the one table from error class to HTTP status and type."""

from outlive.core import errors
from outlive.core.errors import OutliveError, UpstreamFault
from outlive.core.events import Json
from outlive.http.request import Reply, json_reply

# Class -> HTTP status and `type`. The first class of an error's ancestry that stands here decides.
TABLE: dict[type[OutliveError], tuple[int, str]] = {
    errors.Unauthenticated: (401, "invalid_request_error"),
    errors.Forbidden: (403, "invalid_request_error"),
    errors.NotFound: (404, "invalid_request_error"),
    errors.Conflict: (409, "invalid_request_error"),
    errors.TooLarge: (413, "invalid_request_error"),
    errors.UnsupportedMedia: (415, "invalid_request_error"),
    errors.OverBudget: (429, "insufficient_quota"),
    errors.TooMany: (429, "rate_limit_error"),
    errors.ClientFault: (400, "invalid_request_error"),
    errors.UpstreamFault: (502, "server_error"),
    errors.StorageUnavailable: (503, "server_error"),
    errors.IdentityUnavailable: (503, "server_error"),
    errors.ShuttingDown: (503, "server_error"),
    errors.Misdirected: (421, "server_error"),
    errors.OutliveError: (500, "server_error"),
}

# HTTP status by a failed response's code, for causes without a status and for those that are not in memory any more.
STATUS_OF_CODE = {"rate_limit_exceeded": 429, "invalid_prompt": 400}


def describe(error: OutliveError) -> tuple[int, Json, dict[str, str]]:
    """Return the status, the envelope and the headers of an error."""
    status, type_ = next(TABLE[cls] for cls in type(error).__mro__ if cls in TABLE)
    param, code = error.param, error.code
    if isinstance(error, UpstreamFault):
        status, type_, param, code = describe_fault(error)
    headers = retry_after(error.retry_after) | getattr(error, "headers", {})
    if error.should_retry is not None:
        headers["x-should-retry"] = str(error.should_retry).lower()
    return status, envelope(error.message, type_, param, code), headers


def error_reply(error: OutliveError) -> Reply:
    status, body, headers = describe(error)
    return json_reply(body, headers, status)


def retry_after(seconds: float | None) -> dict[str, str]:
    """Return the header that says when to try again, in whole seconds."""
    return {} if seconds is None else {"retry-after": str(max(1, round(seconds)))}


def envelope(message: str, type_: str, param: str | None = None, code: str | None = None) -> Json:
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def describe_fault(fault: UpstreamFault) -> tuple[int, str, str | None, str | None]:
    """Return the status, type, parameter and code of an upstream's failure, for a caller who waited for it (D21). Only
    there a context that is too long has a code of its own: a response's own error has none for it (D20)."""
    if fault.too_long:
        code = "context_length_exceeded"
        return 400, "invalid_request_error", "input", code
    status = fault.status or 0
    if not 400 <= status < 600:  # the upstream gave no answer, one that broke off, or a status that HTTP does not have
        status = 504 if fault.timed_out else STATUS_OF_CODE.get(fault.code or "", 502)
    return status, type_of_status(status), None, fault.code


def type_of_status(status: int) -> str:
    """Return the `type` of an upstream's failure, by the HTTP status that the caller gets."""
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"

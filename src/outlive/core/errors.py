"""Everything that can go wrong, one tree, sorted by whose fault it is. HTTP statuses live in `http/errors`."""

from __future__ import annotations

from typing import Literal

# What ended a run, if neither its model nor a caller did.
EndCode = Literal["worker_lost", "upstream_lost", "upstream_timeout", "deadline_exceeded", "shutdown"]


class OutliveError(Exception):
    """Something went wrong in Outlive."""

    code: str | None = None
    retry_after: float | None = None  # seconds
    # The header that decides whether the SDK asks again by itself; None leaves it to the status.
    should_retry: bool | None = None

    def __init_subclass__(
        cls, code: str | None = None, retry_after: float | None = None, should_retry: bool | None = None
    ) -> None:
        """Set the defaults of a class; those that are left out are inherited."""
        cls.code = cls.code if code is None else code
        cls.retry_after = cls.retry_after if retry_after is None else retry_after
        cls.should_retry = cls.should_retry if should_retry is None else should_retry

    def __init__(
        self, message: str = "", *, param: str | None = None, code: str | None = None, retry_after: float | None = None
    ) -> None:
        self.message = message or (self.__doc__ or "").strip()
        self.param = param
        self.code = self.code if code is None else code
        self.retry_after = self.retry_after if retry_after is None else retry_after
        super().__init__(self.message)


class ClientDisconnected(Exception):
    """The client went away before its request was accepted: there is no one to answer."""


# -- the caller's fault: the request must change before it can work


class ClientFault(OutliveError):
    """The request cannot be served as it is."""


class InvalidRequest(ClientFault, code="invalid_value"):
    """The request is malformed; `param` names the field."""


class Unauthenticated(ClientFault, code="invalid_api_key"):
    """No valid API key was given. Send `Authorization: Bearer KEY`."""


class Forbidden(ClientFault):
    """This server does not take this request from there."""


class NotFound(ClientFault):
    """There is no such thing, or it is not yours, or it was deleted."""


class Conflict(ClientFault, code="idempotency_key_reused", should_retry=False):
    """The same Idempotency-Key was used with another body."""


class TooLarge(ClientFault, code="request_too_large"):
    """The request body is larger than this server takes."""


class UnsupportedMedia(ClientFault, code="unsupported_media_type"):
    """The content type must be application/json."""


class BrokenSeal(ClientFault, code="invalid_value"):
    """This was not sealed by this server, or not for you, or it was changed since."""


class TooMany(ClientFault, code="rate_limit_exceeded", retry_after=1):
    """Too many responses are running or waiting. Try again later."""

    @classmethod
    def waiting(cls, limit: int) -> TooMany:
        return cls(f"{limit} responses are waiting already. Try again later.", retry_after=5)

    @classmethod
    def waiting_of_owner(cls, limit: int) -> TooMany:
        return cls(f"{limit} of your responses are waiting already.", retry_after=5)


class RateLimited(TooMany):
    """An owner has asked for as much in this minute as it may."""

    def __init__(self, message: str, retry_after: int, headers: dict[str, str]) -> None:
        super().__init__(message, retry_after=retry_after)
        self.headers = headers


class OverBudget(TooMany, code="insufficient_quota", should_retry=False):
    """An owner has spent its budget of this month."""

    retry_after = None  # clients that obey it would sleep until the next month


class MustWait(ClientFault, code="rate_limit_exceeded"):
    """Enough of this owner's responses are running already; a new one has to be queued."""


class ConversationLocked(ClientFault, code="conversation_locked", retry_after=1):
    """Another response is running in this conversation."""

    def __init__(self, conversation_id: str, response_id: str) -> None:
        super().__init__(
            f"Another process is currently operating on this conversation: response {response_id} is running in "
            f"{conversation_id}. Please retry in a few seconds, or cancel it.",
            param="conversation",
        )


# -- the upstream's fault: the model's server broke, refused or fell silent


class UpstreamFault(OutliveError, code="server_error"):
    """The upstream could not answer.

    `code` is what `response.error.code` will say; `status` the HTTP status it answered with, if any; `retryable`
    whether asking again may help; `retry_after` the seconds it asked us to wait; `too_long` whether the context does
    not fit into the model's window; `reason` what ended the run, if it is none of the upstream's own errors.
    """

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        status: int | None = None,
        retryable: bool = True,
        retry_after: float | None = None,
        timed_out: bool = False,
        too_long: bool = False,
        reason: EndCode | None = None,
    ) -> None:
        super().__init__(message, code=code, retry_after=retry_after)
        self.status = status
        self.retryable = retryable
        self.timed_out = timed_out
        self.too_long = too_long
        self.reason: EndCode | None = reason or ("upstream_timeout" if timed_out else None)


class LostRun(UpstreamFault):
    """The model's server does not know this run any more."""


# -- our own fault, or our machine's


class ServerFault(OutliveError, code="server_error"):
    """The server failed."""


class StorageUnavailable(ServerFault, retry_after=1):
    """The database cannot be written or read just now. Nothing was half-written; try again."""

    def __init__(self, operation: str, cause: str = "") -> None:
        super().__init__(f"The database is unavailable (during {operation}). Try again.")
        self.operation = operation
        self.cause = cause  # in the database's own words, which are for the log alone


class IdentityUnavailable(ServerFault, code="identity_unavailable", retry_after=5):
    """The identity provider that signs tokens cannot be reached just now. Try again."""


class ShuttingDown(ServerFault, retry_after=2):
    """The server is shutting down. What was accepted is kept; ask again in a moment."""


class Misdirected(ServerFault, code="misdirected_request"):
    """This node is a worker: it runs responses, and takes no requests. Ask one with the role `api` or `all`."""


class StaleFence(OutliveError):
    """The lease of this response has gone to another; nothing may be written under the old one."""


class Behind(OutliveError):
    """The journal ends before what was to be appended begins: a standby was promoted that had not heard of all that
    was committed."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last  # the number that the journal ends with


class SettingsError(OutliveError):
    """A setting is wrong; the message is one sentence that says which and what to do."""


def require(condition: object, message: str) -> None:
    """Raise SettingsError unless a condition holds."""
    if not condition:
        raise SettingsError(message)

"""Everything that can go wrong, one tree, sorted by whose fault it is. HTTP statuses live in `http/errors`."""

from __future__ import annotations


class OutliveError(Exception):
    """Something went wrong in Outlive."""

    code: str | None = None
    # The header that decides whether the SDK asks again by itself; None leaves it to the status.
    should_retry: bool | None = None

    def __init__(self, message: str = "", *, param: str | None = None, code: str | None = None) -> None:
        self.message = message or (self.__doc__ or "").strip()
        self.param = param
        if code is not None:
            self.code = code
        super().__init__(self.message)


class ClientDisconnected(Exception):
    """The client went away before its request was accepted: there is no one to answer."""


# -- the caller's fault: the request must change before it can work


class ClientFault(OutliveError):
    """The request cannot be served as it is."""


class InvalidRequest(ClientFault):
    """The request is malformed; `param` names the field."""

    code = "invalid_value"


class Unauthenticated(ClientFault):
    """No valid API key was given. Send `Authorization: Bearer KEY`."""

    code = "invalid_api_key"


class Forbidden(ClientFault):
    """This server does not take this request from there."""


class NotFound(ClientFault):
    """There is no such thing, or it is not yours, or it was deleted."""


class Conflict(ClientFault):
    """The same Idempotency-Key was used with another body."""

    code = "idempotency_key_reused"
    should_retry = False


class TooLarge(ClientFault):
    """The request body is larger than this server takes."""

    code = "request_too_large"


class UnsupportedMedia(ClientFault):
    """The content type must be application/json."""

    code = "unsupported_media_type"


class BrokenSeal(ClientFault):
    """This was not sealed by this server, or not for you, or it was changed since."""

    code = "invalid_value"


class TooMany(ClientFault):
    """Too many responses are running or waiting. Try again later."""

    code = "rate_limit_exceeded"

    def __init__(self, message: str = "", *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    @classmethod
    def waiting(cls, limit: int) -> TooMany:
        return cls(f"{limit} responses are waiting already. Try again later.", retry_after=5)

    @classmethod
    def waiting_of_owner(cls, limit: int) -> TooMany:
        return cls(f"{limit} of your responses are waiting already.", retry_after=5)


class MustWait(ClientFault):
    """Enough of this owner's responses are running already; a new one has to be queued."""

    code = "rate_limit_exceeded"


class ConversationLocked(ClientFault):
    """Another response is running in this conversation."""

    code = "conversation_locked"

    def __init__(self, conversation_id: str, response_id: str) -> None:
        super().__init__(
            f"Another process is currently operating on this conversation: response {response_id} is running in "
            f"{conversation_id}. Please retry in a few seconds, or cancel it.",
            param="conversation",
        )
        self.retry_after = 1


# -- the upstream's fault: the model's server broke, refused or fell silent


class UpstreamFault(OutliveError):
    """The upstream could not answer.

    `code` is what `response.error.code` will say; `status` the HTTP status it answered with, if any; `retryable`
    whether asking again may help; `retry_after` the seconds it asked us to wait; `too_long` whether the context does
    not fit into the model's window.
    """

    code = "server_error"

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
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after
        self.timed_out = timed_out
        self.too_long = too_long


class LostRun(UpstreamFault):
    """The model's server does not know this run any more."""


# -- our own fault, or our machine's


class ServerFault(OutliveError):
    """The server failed."""

    code = "server_error"


class StorageUnavailable(ServerFault):
    """The database cannot be written or read just now. Nothing was half-written; try again."""

    def __init__(self, operation: str, cause: str = "") -> None:
        super().__init__(f"The database is unavailable (during {operation}). Try again.")
        self.operation = operation
        self.cause = cause  # in the database's own words, which are for the log alone
        self.retry_after = 1


class ShuttingDown(ServerFault):
    """The server is shutting down. What was accepted is kept; ask again in a moment."""

    retry_after = 2


class Misdirected(ServerFault):
    """This node is a worker: it runs responses, and takes no requests. Ask one with the role `api` or `all`."""

    code = "misdirected_request"


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

"""What can go wrong on this side; what the server refuses stays the SDK's own error."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openai.types.responses import Response

    from outlive.client.token import Token


class ClientError(Exception):
    """Every error that is ours."""


class InvalidToken(ClientError, ValueError):
    """This is no continuation token, or not a whole one."""


class PollTimeout(ClientError, TimeoutError):
    """The response had not ended when the longest wait was over. It runs on: poll it again, or cancel it."""

    def __init__(self, response_id: str, waited_seconds: float) -> None:
        super().__init__(
            f"Response {response_id} had not ended after {waited_seconds:.1f} s. It was left running: poll it again, "
            f"or cancel it."
        )
        self.response_id = response_id
        self.waited_seconds = waited_seconds


class ConnectionLost(ClientError, ConnectionError):
    """The connection broke and could not be taken up again. The error that broke it is the `__cause__`.

    `response_id` and `token` are None when the server never said which response this is.
    """

    def __init__(self, why: str, token: Token | None = None) -> None:
        super().__init__(why)
        self.token = token
        self.response_id = None if token is None else token.response_id


class UnsuccessfulResponse(ClientError):
    """The response ended otherwise than completed; `response` is what there is of it."""

    def __init__(self, response: Response) -> None:
        super().__init__(_describe(response))
        self.response = response
        self.response_id = response.id


class ResponseFailed(UnsuccessfulResponse):
    """`response.error` says why."""


class ResponseCancelled(UnsuccessfulResponse):
    """Somebody cancelled it; what it had said until then is in `response.output`."""


class ResponseIncomplete(UnsuccessfulResponse):
    """`response.incomplete_details.reason` says why."""


def _describe(response: Response) -> str:
    why = ""
    if response.error is not None:
        why = f": {response.error.message}"
    elif response.incomplete_details is not None:
        why = f": {response.incomplete_details.reason}"
    return f"Response {response.id} ended as {response.status}{why}"

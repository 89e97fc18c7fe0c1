"""Programs of the core, performed with an OpenAI client."""

from __future__ import annotations

import time
from typing import Self

from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent

from outlive.client.actions import Action, Done, Follow, Outcome, Read, Sleep, Submit
from outlive.client.core import poll
from outlive.client.errors import check
from outlive.client.plans import Plan
from outlive.client.sdk import BaseStream, SdkCalls, interrupted, is_terminal, read_outcome


class Performer(SdkCalls):
    def perform(self, action: Action) -> Outcome:
        try:
            match action:
                case Read():
                    event = next(self._stream, None)
                    if is_terminal(event):  # closed before it is delivered: if interrupted here, it is read again
                        self.close()
                    return read_outcome(event)
                case Sleep(seconds):
                    (self._plan.retry_policy.sleep or time.sleep)(seconds)
                    return Done()
                case Submit() | Follow():
                    self.close()
            return self._answered(action, self._request(action))
        except Exception as error:  # any HTTP library's errors come through; the core raises those it cannot handle
            return self._failed(action, error)

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


def run_poll(client: OpenAI, plan: Plan) -> Response:
    """Perform the polling program to its end."""
    performer, program = Performer(client, plan), poll(plan)
    outcome: Outcome = None
    while True:
        try:
            action = program.send(outcome)
        except StopIteration as end:
            return check(end.value, plan.raise_on)
        outcome = performer.perform(action)


class ResponseStream(BaseStream):
    """Iterator over the SDK's events that survives broken connections. Made by `stream` and `resume`.

    `close()`, or the end of a `with` block, closes the connection early and leaves the run alone. After a call that was
    interrupted, for example by Ctrl-C, the next call continues after the last event delivered.
    """

    def __init__(self, client: OpenAI, plan: Plan) -> None:
        super().__init__(plan)
        self._client = client
        self._performer = Performer(client, plan)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ResponseStreamEvent:
        while (action := self._next_action()) is not None:
            if (event := self._event_of(action)) is not None:
                return event
            outcome: Outcome = None
            try:
                outcome = self._performer.perform(action)
            finally:
                self._outcome = outcome or interrupted()
        self._performer.close()  # opened during close(), if at all
        raise StopIteration

    def get_final_response(self) -> Response:
        """Read the remaining events and return the terminal response, with any status (see `check`)."""
        for _ in self:
            pass
        if self._response is None:
            self._response = run_poll(self._client, self._plan_poll())
        return self._response

    def close(self) -> None:
        """Close the connection. The run continues, and can be resumed with `token`."""
        self._program.close()
        self._performer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

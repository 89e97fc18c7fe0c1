"""Progress that tells, to any thread, as soon as the id of the response is known."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from outlive.client import Progress


class Watch(Progress):
    """What `outlive.client` fills in on the way, with a future for the id."""

    def __init__(self) -> None:
        self.known: Future[str] = Future()
        super().__init__()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "response_id" and value is not None and not self.known.done():
            self.known.set_result(value)

    def give_up(self) -> None:
        """The submit is over; if it has brought no id, it will bring none."""
        self.known.cancel()

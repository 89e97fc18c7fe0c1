"""Scripts of long answers for the fake upstream, which can be started over or continued."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.upstream import DONE, Json, Pause, Refuse, Script, Step, finish, text, usage


def words(count: int, name: str = "w") -> list[str]:
    return [f"{name}{n} " for n in range(count)]


def stream_words(
    pieces: list[str], *, before: list[Step] | None = None, pause: float = 0.0
) -> Callable[[Json], Script]:
    """Send the pieces, each after a pause; a request that ends with the start of the answer gets only the rest.

    A request that ends with any other text is refused, so that a wrong prefix shows as a failure.
    """

    def choose(body: Json) -> Script:
        left = find_rest(pieces, body)
        if left is None:
            return [Refuse(400, {"error": {"message": "that is not the start of my answer", "type": "x"}})]
        steps: list[Step] = [*(before or [])]
        for piece in left:
            steps += [Pause(pause), text(piece)] if pause else [text(piece)]
        return [*steps, finish(), usage(5, len(left)), DONE]

    return choose


def find_rest(pieces: list[str], body: Json) -> list[str] | None:
    """Return the pieces that the trailing assistant message lacks; None where it is not a start of them."""
    last = body["messages"][-1]
    if last["role"] != "assistant":
        return pieces
    prefix = last["content"]
    for count in range(len(pieces) + 1):
        if "".join(pieces[:count]) == prefix:
            return pieces[count:]
    return None

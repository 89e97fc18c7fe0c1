"""Scripts for the upstream: answers long enough to be cut, that can be begun again or written on."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.upstream import DONE, Json, Pause, Refuse, Script, Step, finish, text, usage


def words(count: int, name: str = "w") -> list[str]:
    return [f"{name}{n} " for n in range(count)]


def tell(pieces: list[str], *, before: list[Step] | None = None, pause: float = 0.0) -> Callable[[Json], Script]:
    """Tell the pieces, each after a pause; asked with the beginning of the answer, only the rest of it.

    An answer that does not begin so is refused, so that a wrong prefix shows as a failure.
    """

    def choose(body: Json) -> Script:
        left = remaining(pieces, body)
        if left is None:
            return [Refuse(400, {"error": {"message": "that is not how my answer began", "type": "x"}})]
        spoken: list[Step] = [*(before or [])]
        for piece in left:
            spoken += [Pause(pause), text(piece)] if pause else [text(piece)]
        return [*spoken, finish(), usage(5, len(left)), DONE]

    return choose


def remaining(pieces: list[str], body: Json) -> list[str] | None:
    """The pieces that are not in the trailing assistant message yet; None when it is not a beginning of them."""
    last = body["messages"][-1]
    if last["role"] != "assistant":
        return pieces
    said = last["content"]
    for count in range(len(pieces) + 1):
        if "".join(pieces[:count]) == said:
            return pieces[count:]
    return None

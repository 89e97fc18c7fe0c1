"""Scripts of the upstream's models, with the answer that each must lead to."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.support.scripts import find_rest, stream_words, words
from tests.support.upstream import CUT, FakeUpstream, Json, Pause, Script, Step, call, ending, text

PACE = 0.1  # seconds between two words


class Expected(NamedTuple):
    """The complete answer of a model."""

    text: str
    arguments: str = ""  # of the call at its end


def add_models(upstream: FakeUpstream) -> dict[str, Expected]:
    """Add models with short and long answers, with a late start, a cut connection, or a call at the end.

    Returns the expected answers by model.
    """
    answers: dict[str, Expected] = {}
    for length in (15, 40, 70):
        pieces = words(length, f"t{length}-")
        answers[upstream.model(stream_words(pieces, pause=PACE))] = Expected("".join(pieces))
    late = words(12, "late-")
    answers[upstream.model(stream_words(late, before=[Pause(3.0)], pause=PACE))] = Expected("".join(late))
    broken = words(30, "broken-")
    answers[upstream.model(_cut_once(broken))] = Expected("".join(broken))
    answers[upstream.model(_call())] = Expected("Let me see. ", '{"place": "' + "x" * 20 + '"}')
    # Each on an upstream that can continue an answer, and on one that cannot.
    return {f"{name}/{model}": answer for model, answer in answers.items() for name in ("can", "cannot")}


def _cut_once(pieces: list[str]) -> Callable[[Json], Script]:
    """Cut the connection in the middle of the answer; a request for the rest gets it."""

    def choose(body: Json) -> Script:
        left = find_rest(pieces, body)
        script = list(stream_words(pieces, pause=PACE)(body))
        return [*script[: len(pieces)], CUT] if left is not None and len(left) == len(pieces) else script

    return choose


def _call() -> Callable[[Json], Script]:
    """Send a text, which can be continued while it is open, and then the pieces of a call, which cannot."""
    pieces = ["Let ", "me see. "]

    def choose(body: Json) -> Script:
        steps: list[Step] = []
        for piece in find_rest(pieces, body) or []:
            steps += [Pause(PACE), text(piece)]
        steps += [call(0, '{"place": "', id="call_1", name="look")]
        for _ in range(20):
            steps += [Pause(PACE), call(0, "x")]
        return [*steps, call(0, '"}'), *ending("tool_calls")]

    return choose

"""What the models of the scripted upstream tell, so that it is known afterwards what every answer had to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.crash.stories import remaining, tell, words
from tests.support.upstream import CUT, FakeUpstream, Json, Pause, Script, Step, call, ending, text

PACE = 0.1  # seconds between two words


class Tale(NamedTuple):
    text: str
    arguments: str = ""  # of the call that it ends with


def tell_tales(upstream: FakeUpstream) -> dict[str, Tale]:
    """Model -> what it tells: short and long ones, some that keep silent at first, break off, or end with a call."""
    tales: dict[str, Tale] = {}
    for length in (15, 40, 70):
        story = words(length, f"t{length}-")
        tales[upstream.model(tell(story, pause=PACE))] = Tale("".join(story))
    late = words(12, "late-")
    tales[upstream.model(tell(late, before=[Pause(3.0)], pause=PACE))] = Tale("".join(late))
    broken = words(30, "broken-")
    tales[upstream.model(_break_off(broken))] = Tale("".join(broken))
    tales[upstream.model(_call())] = Tale("Let me see. ", '{"place": "' + "x" * 20 + '"}')
    # Each on an upstream that can write on in an answer, and on one that cannot.
    return {f"{name}/{model}": tale for model, tale in tales.items() for name in ("can", "cannot")}


def _break_off(story: list[str]) -> Callable[[Json], Script]:
    """The connection breaks in the middle; whoever asks for the rest gets it."""

    def choose(body: Json) -> Script:
        left = remaining(story, body)
        script = list(tell(story, pause=PACE)(body))
        return [*script[: len(story)], CUT] if left is not None and len(left) == len(story) else script

    return choose


def _call() -> Callable[[Json], Script]:
    """A text and then a call, piece by piece: while the text is open it can be continued, from then on nobody can."""
    said = ["Let ", "me see. "]

    def choose(body: Json) -> Script:
        steps: list[Step] = []
        for piece in remaining(said, body) or []:
            steps += [Pause(PACE), text(piece)]
        steps += [call(0, '{"place": "', id="call_1", name="look")]
        for _ in range(20):
            steps += [Pause(PACE), call(0, "x")]
        return [*steps, call(0, '"}'), *ending("tool_calls")]

    return choose

"""Recovery of a run whose worker died or whose upstream broke: restart it, continue in place, or end it (D9, D10)."""

from enum import StrEnum, auto

import msgspec

from outlive.core.errors import UpstreamFault
from outlive.core.events import AnyDraft, Json
from outlive.core.fold import Fold
from outlive.core.grammar import CONTENT, OUTPUT_TEXT

MAX_ATTEMPTS = 3
# Types of items that may be open when a step is begun again.
_CLOSABLE = frozenset({"reasoning", "mcp_call"})
CONTINUABLE = frozenset({"prefill", "continue_final_message", "prefix"})


class OpenText(msgspec.Struct, frozen=True):
    """The text part that was growing when a run was interrupted, and is to be continued."""

    item_id: str
    output_index: int
    content_index: int
    text: str
    # Deltas already sent: the best count there is of the tokens already generated.
    deltas: int


class Action(StrEnum):
    """The ways to deal with a run that stopped without a terminal event."""

    RESTART = auto()  # nothing was visible: start over
    REATTACH = auto()  # follow the run, which goes on at the upstream
    NEXT_STEP = auto()  # close what is open as it stands, then take the next step
    CONTINUE = auto()  # let the upstream continue the open text
    INTERRUPT = auto()  # end as incomplete
    FAIL = auto()  # end as failed; nothing was ever visible


class Decision(msgspec.Struct, frozen=True):
    """An action, with the text to continue for `Action.CONTINUE`."""

    action: Action
    open_text: OpenText | None = None


def decide(
    fold: Fold,
    *,
    attempts: int,
    resumed_at: list[int],
    continuation: str,
    text_format: str,
    stepwise: bool = False,
    reattachable: bool = False,
) -> Decision:
    """Decide how to deal with a run that stopped without a terminal event.

    It has been claimed `attempts` times, the present claim included, and was resumed before each of the sequence
    numbers in `resumed_at`. `stepwise`: its answer is made in several steps and can be continued after each finished
    one. `reattachable`: it goes on at the upstream without this server.
    """
    if not fold.visible:
        if attempts > MAX_ATTEMPTS:
            return Decision(Action.FAIL)
        return Decision(Action.REATTACH if reattachable else Action.RESTART)
    # Each resumption must bring something new, or a poisoned answer would be continued for ever.
    if resumed_at.count(fold.last + 1) >= MAX_ATTEMPTS:
        return Decision(Action.INTERRUPT)
    if reattachable:
        return Decision(Action.REATTACH)
    # A run of one step has a next one only while its output is a compaction alone.
    only_compacted = not any(fold.open_items()) and {item.get("type") for item in fold.output} == {"compaction"}
    if (stepwise and _may_step(fold)) or (not stepwise and only_compacted):
        return Decision(Action.NEXT_STEP)
    can_continue = continuation in CONTINUABLE and text_format == "text"
    open_text = find_open_text(fold, stepwise=stepwise) if can_continue else None
    return Decision(Action.INTERRUPT if open_text is None else Action.CONTINUE, open_text)


def _may_step(fold: Fold) -> bool:
    """Return True if no part of the answer itself is open: reasoning can be repeated, and calls have their own rules.

    Reasoning that never ends, because it crashes the server each time, is not repeated for ever.
    """
    if any(item.get("type") not in _CLOSABLE for _, item, _ in fold.open_items()):
        return False
    last = fold.output[-MAX_ATTEMPTS:]
    broken = [item for item in last if item.get("type") == "reasoning" and item.get("status") != "completed"]
    return len(broken) < MAX_ATTEMPTS


def find_open_text(fold: Fold, *, stepwise: bool = False) -> OpenText | None:
    """Return the open text part, if nothing else is open."""
    open_items = list(fold.open_items())
    if len(open_items) != 1:
        return None
    output_index, item, parts = open_items[0]
    # Only a message with this text alone: a part before it (a refusal, say) could not be sent to the model.
    if item.get("type") != "message" or parts != [(CONTENT.name, 0)]:
        return None
    part: Json = item["content"][0]
    if part.get("type") != "output_text" or fold.is_text_done(OUTPUT_TEXT, output_index):
        return None
    # The deltas of earlier steps are counted already.
    deltas = fold.count_deltas(OUTPUT_TEXT, output_index) if stepwise else fold.deltas
    return OpenText(item["id"], output_index, 0, part["text"], deltas)


NOT_THE_SAME = "The model's server did not send the same again when its run was resumed."


class ReplayFilter(msgspec.Struct, eq=False):
    """Drops the first drafts of a run that its upstream sends again, which must lead to what the fold holds.

    The upstream repeats its events, and the same translator makes the same drafts of them, so the first ones are in the
    journal already. They are folded and compared with it all the same: an upstream that repeats its run differently
    must not put a hole, or a repetition, into an answer.
    """

    _fold: Fold
    _left: int  # drafts to drop
    _repeated: Fold = msgspec.field(default_factory=lambda: Fold({"status": "in_progress"}))

    def filter(self, drafts: list[AnyDraft]) -> list[AnyDraft]:
        """Return the new drafts among these. Raises UpstreamFault when the repeated run differs from the journal."""
        if not self._left or not drafts:
            return drafts
        known, new = drafts[: self._left], drafts[self._left :]
        self._left -= len(known)
        self._repeated.apply(known)
        if not self._left and self._repeated.output != self._fold.output:
            raise UpstreamFault(NOT_THE_SAME, retryable=False)
        return new

    def end(self) -> None:
        """Raise UpstreamFault when the stream ended before it reached the end of the journal."""
        if self._left:
            raise UpstreamFault(NOT_THE_SAME, retryable=False)

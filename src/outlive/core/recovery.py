"""What becomes of a run whose worker died or whose upstream broke: again, continue in place, or end it (D9, D10)."""

from __future__ import annotations

from typing import Literal

import msgspec

from outlive.core.events import Json
from outlive.core.fold import Fold

MAX_ATTEMPTS = 3
CONTINUABLE = frozenset({"prefill", "continue_final_message", "prefix"})


class Open(msgspec.Struct, frozen=True):
    """The text part that was growing when a run was interrupted, and is to grow on."""

    item_id: str
    output_index: int
    content_index: int
    text: str
    # Deltas already shown; the best count there is of the tokens already made.
    deltas: int


class Verdict(msgspec.Struct, frozen=True):
    """`again`: nothing was visible, start over. `continue`: go on in `open`. `interrupted`: end as incomplete.
    `failed`: end as failed, nothing was ever visible."""

    what: Literal["again", "continue", "interrupted", "failed"]
    open: Open | None = None


def decide(fold: Fold, *, attempts: int, joints: list[int], continuation: str, text_format: str) -> Verdict:
    """What becomes of a run that stopped without a terminal event.

    It has been claimed `attempts` times, the present one included, and was joined before the numbers in `joints`.
    """
    if not fold.visible:
        return Verdict("again" if attempts <= MAX_ATTEMPTS else "failed")
    # Each joint must bring something new, or a poisoned answer would be continued for ever.
    fruitless = joints.count(fold.last + 1)
    if continuation in CONTINUABLE and text_format == "text" and fruitless < MAX_ATTEMPTS:
        open_text = find_open_text(fold)
        if open_text is not None:
            return Verdict("continue", open_text)
    return Verdict("interrupted")


def find_open_text(fold: Fold) -> Open | None:
    """The one text part that is open, if nothing else is."""
    open_items = list(fold.open_items())
    if len(open_items) != 1:
        return None
    output_index, item, parts = open_items[0]
    # Only a message that is nothing but this text: a part before it (a refusal, say) could not be told to the model.
    if item.get("type") != "message" or parts != [("content", 0)]:
        return None
    part: Json = item["content"][0]
    if part.get("type") != "output_text" or fold.is_said("response.output_text.delta", output_index):
        return None
    return Open(item["id"], output_index, 0, part["text"], fold.deltas)

"""Wrong keys are refused more and more slowly, by address, in bounded memory."""

from __future__ import annotations

from outlive.http import access
from outlive.http.access import FORGET_SECONDS, FREE_TRIES, LONGEST_PAUSE, WrongKeys


def test_the_pause_doubles_with_each_wrong_key_up_to_a_limit() -> None:
    wrong = WrongKeys()
    pauses = [wrong.add("1.1.1.1", now=0.0) for _ in range(100)]
    assert pauses[:FREE_TRIES] == [0.0] * FREE_TRIES
    assert pauses[FREE_TRIES : FREE_TRIES + 4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses[-1] == LONGEST_PAUSE


def test_another_address_and_one_that_was_quiet_for_long_are_not_delayed() -> None:
    wrong = WrongKeys()
    for _ in range(20):
        wrong.add("1.1.1.1", now=0.0)
    assert wrong.add("2.2.2.2", now=0.0) == 0
    assert wrong.add("1.1.1.1", now=FORGET_SECONDS + 1) == 0


def test_only_the_latest_addresses_are_remembered() -> None:
    wrong = WrongKeys()
    for number in range(access.MAX_ADDRESSES + 10):
        wrong.add(str(number), now=0.0)
    assert len(wrong._tries) == access.MAX_ADDRESSES
    assert "0" not in wrong._tries

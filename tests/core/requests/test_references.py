"""References: the items they name stand in their places, and what nobody has is named."""

from __future__ import annotations

import pytest

from outlive.core.errors import NotFound
from outlive.core.events import Json
from outlive.core.requests.references import find_references, resolve


def reference(item_id: str) -> Json:
    return {"id": item_id, "type": "item_reference"}


def item(item_id: str) -> Json:
    return {"id": item_id, "type": "message", "role": "user", "content": []}


def test_what_is_referred_to_and_not_there_must_be_found() -> None:
    assert find_references([reference("a"), item("b"), reference("c"), reference("b")]) == ["a", "c"]
    assert find_references([item("a")]) == []


def test_items_stand_where_they_were_referred_to() -> None:
    items = [reference("a"), item("b"), reference("c")]
    assert resolve(items, {"a": item("a"), "c": item("c")}) == [item("a"), item("b"), item("c")]


def test_a_reference_to_an_item_of_the_same_input_says_nothing_new() -> None:
    assert resolve([reference("a"), item("a")], {}) == [item("a")]


def test_what_was_not_found_is_named() -> None:
    with pytest.raises(NotFound, match="Item with id 'c' not found") as caught:
        resolve([item("a"), reference("b"), reference("c")], {"b": item("b")})
    assert caught.value.param == "input[2].id"

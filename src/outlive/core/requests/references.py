"""References: items that a request names instead of sending them, put in their places."""

from __future__ import annotations

from collections.abc import Mapping

from outlive.core.errors import NotFound
from outlive.core.events import Json
from outlive.core.requests.items import REFERENCE


def find_references(items: list[Json]) -> list[str]:
    """The ids that are referred to, besides those of items that are there."""
    here = {item["id"] for item in items if item["type"] != REFERENCE}
    return [item["id"] for item in items if item["type"] == REFERENCE and item["id"] not in here]


def resolve(items: list[Json], found: Mapping[str, Json]) -> list[Json]:
    """The items with those that were found in place of their references. Raises NotFound naming one that was not."""
    missing = set(find_references(items)) - found.keys()
    for n, item in enumerate(items):
        if item["type"] == REFERENCE and item["id"] in missing:
            raise NotFound(
                f"Item with id '{item['id']}' not found. Items of responses with `store: false` are not kept; send the "
                "item itself.",
                param=f"input[{n}].id",
            )
    # A reference to an item that the input itself holds says nothing new.
    return [found[item["id"]] if item["type"] == REFERENCE else item for item in items if _counts(item, found)]


def _counts(item: Json, found: Mapping[str, Json]) -> bool:
    return item["type"] != REFERENCE or item["id"] in found

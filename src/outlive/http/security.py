"""The security log: keys, limits and ids that were refused, and what was deleted, by owner and address; no content."""

import asyncio
import logging
from collections import Counter
from collections.abc import MutableMapping
from typing import Any

from outlive.core.errors import NotFound, OutliveError, TooLarge, TooMany
from outlive.core.owners import name_of
from outlive.http.addresses import TrustedProxies, group

log = logging.getLogger("outlive.security")

INTERVAL_SECONDS = 60.0
# Refusals that are counted apart from each other in one interval: clients choose their addresses.
MAX_COUNTS = 500
OTHERS = "others"

# Codes of errors about an id: an unknown one, a deleted one, or another owner's (D14).
_CODES_OF_IDS = (None, "previous_response_not_found")


class SecurityLog:
    """Writes each deletion at once, and what may come often once per interval with its count."""

    def __init__(self, proxies: TrustedProxies) -> None:
        self._proxies = proxies
        # By message, address, owner, code and the key's id.
        self._counts: Counter[tuple[str, str, str, str, str]] = Counter()

    def find_address(self, scope: MutableMapping[str, Any]) -> str:
        """Return the address of a request's client, also behind trusted proxies."""
        return self._proxies.find_client(scope["client"][0] if scope.get("client") else "", scope["headers"])

    def write_deletion(self, scope: MutableMapping[str, Any], fields: dict[str, Any]) -> None:
        log.info("deleted", extra=fields | {"address": self.find_address(scope)})

    def count_error(self, scope: MutableMapping[str, Any], owner: str, error: OutliveError) -> None:
        """Count a request that was refused for a limit, or for an id that its owner does not have."""
        if isinstance(error, TooMany | TooLarge):
            self.count("limit hit", self.find_address(scope), owner, error.code or "")
        elif error.code in _CODES_OF_IDS and (isinstance(error, NotFound) or error.code):
            self.count("unknown id", self.find_address(scope), owner)

    def count(self, message: str, address: str, owner: str = "", code: str = "", key_id: str = "") -> None:
        if not self._counts:
            asyncio.get_running_loop().call_later(INTERVAL_SECONDS, self.flush)
        counted = (message, group(address), name_of(owner), code, key_id)
        if len(self._counts) >= MAX_COUNTS and counted not in self._counts:
            counted = (message, OTHERS, "", code, "")
        self._counts[counted] += 1

    def flush(self) -> None:
        """Write what was counted."""
        counts, self._counts = self._counts, Counter()
        for (message, address, owner, code, key_id), count in counts.items():
            fields = {"address": address, "owner": owner, "code": code, "key_id": key_id, "count": count}
            log.warning(message, extra=fields)

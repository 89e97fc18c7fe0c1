"""Webhooks: the events that a response sends, their payload and signature, and the pauses between attempts."""

import base64
import hashlib
import hmac
from typing import Literal, get_args

import msgspec

from outlive.core.events import Json

EventType = Literal[
    "response.completed",
    "response.failed",
    "response.cancelled",
    "response.incomplete",
    "response.approval_required",  # of this server alone: a tool call waits until a person approves it
]
EVENT_TYPES: tuple[str, ...] = get_args(EventType)

GIVE_UP_SECONDS = 72 * 3600.0  # also in the SQL that writes deliveries
LONGEST_PAUSE = 3600.0
_PREFIX = "whsec_"


def find_events(status: str, output: list[Json]) -> list[str]:
    """Return the types of the events that a response sends at its end, in their order."""
    waits = any(item.get("type") == "mcp_approval_request" for item in output)
    return ["response.approval_required"] * waits + [f"response.{status}"]


def make_payload(event_type: str, response_id: str, at: float) -> bytes:
    """Return the body of an event: ids alone. Its own id is the same for every endpoint and every attempt."""
    event_id = hashlib.sha256(f"{event_type} {response_id}".encode()).hexdigest()[:48]
    payload = {"id": f"evt_{event_id}", "object": "event", "created_at": int(at), "type": event_type}
    return msgspec.json.encode(payload | {"data": {"id": response_id}})


def make_secret(random: bytes) -> str:
    return _PREFIX + base64.b64encode(random).decode()


def sign(secrets: list[str], delivery_id: str, at: int, body: bytes) -> str:
    """Return the header webhook-signature of Standard Webhooks, with a signature by each secret."""
    signed = b"%b.%d.%b" % (delivery_id.encode(), at, body)
    keys = (base64.b64decode(secret.removeprefix(_PREFIX)) for secret in secrets)
    digests = (hmac.digest(key, signed, "sha256") for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def pause_after(attempts: int, chance: float, asked: float | None) -> float:
    """Return the seconds until the next attempt: twice as long each time, spread by `chance` (0 to 1) so that many
    deliveries do not come at once, and not before the receiver asked for."""
    pause = min(2.0 ** min(attempts - 1, 20), LONGEST_PAUSE) * (0.75 + chance / 2)
    return max(pause, asked or 0.0)

"""Durability of a Postgres: finds settings and standbys with which committed data may be lost."""

from typing import Any

import msgspec

_SETTINGS = "SELECT name, setting FROM pg_settings WHERE name = ANY ($1)"
_NAMES = ["fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names"]
# A role without pg_monitor sees that there are standbys, but not of what kind.
_STANDBYS = "SELECT coalesce(nullif(application_name, ''), 'a standby'), sync_state FROM pg_stat_replication"

_LOST = "events that clients have seen are gone, and their answers go on differently under the same numbers"

_SENTENCES = {
    "fsync": "fsync is off: when the database's machine crashes or loses power, the whole database may be damaged "
    "beyond repair. Turn it on.",
    "full_page_writes": "full_page_writes is off: when the database's machine loses power, pages of the database may "
    "be damaged. Turn it on, unless the file system writes pages whole.",
    "off": f"synchronous_commit is off: when the database crashes, its last moments are lost: {_LOST}. Set it to on.",
    "local": "synchronous_commit is local: commits do not wait for the synchronous standby, so when that is promoted, "
    f"the last moments before are lost: {_LOST}. Set it to on.",
    "remote_write": "synchronous_commit is remote_write: when primary and standby crash together, their last moments "
    f"are lost: {_LOST}. Set it to on.",
    "async": f"{{names}}: asynchronous. If it is promoted, what it had not received yet is lost: {_LOST}. Name it in "
    "synchronous_standby_names to be safe.",
    "unseen": "There are standbys, but this user may not see whether they are synchronous. Grant it pg_monitor.",
}


class Risk(msgspec.Struct, frozen=True):
    """A setting or a standby with which committed data may be lost."""

    name: str
    sentence: str


async def find_risks(connection: Any) -> list[Risk]:
    settings = {row[0]: row[1] for row in await connection.fetch(_SETTINGS, _NAMES)}
    risks = [Risk(name, _SENTENCES[name]) for name in ("fsync", "full_page_writes") if settings.get(name) == "off"]
    commit = settings.get("synchronous_commit", "on")
    has_synchronous = bool(settings.get("synchronous_standby_names"))
    if commit == "off" or (commit in ("local", "remote_write") and has_synchronous):
        risks.append(Risk("synchronous_commit", _SENTENCES[commit]))
    standbys = await connection.fetch(_STANDBYS)
    asynchronous = sorted(name for name, state in standbys if state == "async")
    if any(state is None for _, state in standbys):
        risks.append(Risk("standby", _SENTENCES["unseen"]))
    elif asynchronous:
        risks.append(Risk("standby", _SENTENCES["async"].format(names=", ".join(asynchronous))))
    return risks

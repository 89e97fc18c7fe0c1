"""Names for the database's advisory locks: what nodes must do one after the other, but that has no row to lock."""

from __future__ import annotations

from hashlib import blake2b


def lock_of(*names: str) -> int:
    """Two names may share a lock, which costs a wait and nothing else."""
    digest = blake2b("\0".join(names).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)

"""Ids are UUIDs in their canonical text form; those made here are version 7, so they sort by time of making."""

from __future__ import annotations

import os
import time
import uuid

#: Of ids that are made from idempotency keys.
_KEYS = uuid.UUID("6f1c1a52-6f0b-4d3e-9d27-6a1a1f4c2b90")


def new_id() -> str:
    """A UUIDv7 (RFC 9562 §5.7): Unix milliseconds, 12 bits of the millisecond's part (§6.2, method 3), 62 random bits.

    So ids that one process makes one after the other sort in that order.
    """
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    random = int.from_bytes(os.urandom(8), "big") >> 2
    return str(uuid.UUID(int=milliseconds << 80 | 0x7 << 76 | (rest << 12) // 1_000_000 << 64 | 0x2 << 62 | random))


def keyed_id(tenant: str, key: str) -> str:
    """The id of the job that a tenant sends under an idempotency key: the same for the same key."""
    return str(uuid.uuid5(_KEYS, f"{tenant}\n{key}"))


def canonical_id(text: str) -> str:
    """The canonical form of a UUID in any of its spellings; raises ValueError for anything else."""
    return str(uuid.UUID(text))

"""Ids are UUIDs in their canonical text form; those made here are version 7, so they sort by time of making."""

from __future__ import annotations

import os
import time
import uuid


def new_id() -> str:
    """A UUIDv7 (RFC 9562 §5.7): 48 bits of Unix milliseconds, then 74 random bits."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | (0x7 << 76)
    value = value & ~(0x3 << 62) | (0x2 << 62)
    return str(uuid.UUID(int=value))


def canonical_id(text: str) -> str:
    """The canonical form of a UUID in any of its spellings; raises ValueError for anything else."""
    return str(uuid.UUID(text))

"""The quarantine: bytes are kept as they are, and decided about once."""

from __future__ import annotations

import asyncio

import pytest

from schemas.errors import Conflict, NotFound
from storage.database import Database, open_database
from storage.quarantine import DROPPED, REQUEUED, get_entry, get_lying, keep, list_entries, resolve
from tests.integration.storage.acts import TENANT

GARBAGE = (b"", b"\x00", b"\xff\xfe\x00bytes", b"x" * 1_000_000, '{"text": "ö\u2028"}'.encode())


async def test_bytes_are_kept_as_they_are(database: Database) -> None:
    ids = [await database.write(keep, "chat", "not a\x00 message", payload) for payload in GARBAGE]
    for entry_id, payload in zip(ids, GARBAGE, strict=True):
        entry = await database.read(get_entry, TENANT, entry_id)
        assert (bytes(entry["payload"]), entry["size"], entry["resolution"]) == (payload, len(payload), None)
    listed = await database.read(list_entries, TENANT, limit=10)
    assert [entry["id"] for entry in listed] == ids[::-1]
    assert [entry["size"] for entry in listed] == [len(payload) for payload in GARBAGE[::-1]]
    assert "payload" not in listed[0]
    page = await database.read(list_entries, TENANT, limit=10, before=ids[2])
    assert [entry["id"] for entry in page] == [ids[1], ids[0]]


async def test_entries_are_listed_by_queue_and_by_what_became_of_them(database: Database) -> None:
    lying, requeued, dropped = [await database.write(keep, queue, "r", b"x") for queue in ("bulk", "chat", "chat")]
    await database.write(resolve, TENANT, requeued, REQUEUED)
    await database.write(resolve, TENANT, dropped, DROPPED)
    for options, expected in (
        ({}, lying),
        ({"queue": "bulk"}, lying),
        ({"state": REQUEUED}, requeued),
        ({"state": DROPPED, "queue": "chat"}, dropped),
    ):
        (found,) = await database.read(list_entries, TENANT, limit=10, **options)
        assert found["id"] == expected
    assert await database.read(list_entries, "other", limit=10) == []


async def test_of_many_decisions_at_once_exactly_one_is_made(database: Database, database_url: str) -> None:
    entry_id = await database.write(keep, "chat", "r", b"x")
    other = open_database(database_url)
    try:
        results = await asyncio.gather(
            *(db.write(resolve, TENANT, entry_id, how) for db in (database, other) for how in (REQUEUED, DROPPED)),
            return_exceptions=True,
        )
    finally:
        await other.close()
    made = [result for result in results if isinstance(result, dict)]
    assert len(made) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 3
    with pytest.raises(Conflict, match="already"):
        await database.read(get_lying, TENANT, entry_id)


async def test_missing_and_foreign_entries_look_the_same(database: Database) -> None:
    entry_id = await database.write(keep, "chat", "r", b"x")
    for tenant, wanted in (("other", entry_id), (TENANT, "01a22e77-b012-7487-bbca-4f0f123f3171")):
        with pytest.raises(NotFound, match="no such entry"):
            await database.read(get_entry, tenant, wanted)
        with pytest.raises(NotFound, match="no such entry"):
            await database.write(resolve, tenant, wanted, DROPPED)

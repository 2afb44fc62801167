import asyncio

import pytest

from demo.journal import Journal, Record


def begin(journal: Journal, body: bytes = b"{}") -> Record:
    return journal.begin(body, 0.0, authorization=True)


def test_requests_are_kept_in_order_with_their_bodies() -> None:
    journal = Journal()
    begin(journal, b'{"a": 1}')
    begin(journal, b"no json")
    assert [record.id for record in journal.find()] == [1, 2]
    assert [record.id for record in journal.find(containing=b"json")] == [2]
    assert [record.id for record in journal.find(limit=1)] == [2]
    assert journal.find(limit=0) == []
    assert journal.find()[1].shown()["body"] == "no json"


def test_the_oldest_requests_are_forgotten() -> None:
    journal = Journal()
    for _ in range(1_200):
        begin(journal)
    assert len(journal.find()) == 1_000
    assert journal.find()[-1].id == 1_200
    begin(journal, b"x" * 70_000_000)
    assert [record.id for record in journal.find()] == [1_201]


def test_counters_go_on_when_requests_are_forgotten() -> None:
    journal = Journal()
    done, gone, broken = begin(journal), begin(journal), begin(journal)
    begin(journal)
    journal.end(done, "done")
    journal.end(gone, "gone")
    journal.end(broken, "broken")
    journal.clear()
    assert journal.find() == []
    assert journal.stats() == {"requests": 4, "open": 1, "done": 1, "gone": 1, "broken": 1}


async def test_a_wait_ends_when_enough_requests_match() -> None:
    journal = Journal()
    waiting = asyncio.create_task(journal.wait_for(30, containing=b"x", state="gone", count=2))
    for body in (b"x", b"y", b"x"):
        await asyncio.sleep(0)
        assert not waiting.done()
        journal.end(begin(journal, body), "gone")
    await waiting


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_wait_ends_in_time_or_when_the_server_stops(stopped: bool) -> None:
    journal = Journal()
    waiting = asyncio.create_task(journal.wait_for(30 if stopped else 0.01))
    await asyncio.sleep(0)
    if stopped:
        journal.stop()
    await waiting
    assert journal.find() == []

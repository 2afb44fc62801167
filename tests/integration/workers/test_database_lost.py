"""SQL may go away at any moment: nothing is answered twice, and a finished answer waits in memory until it is saved."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

import storage.database
from schemas.errors import StorageUnavailable
from storage.jobs import settle
from storage.tables import messages
from tests.integration.workers.flaky import AFTER, BEFORE, ENDING, Flaky
from tests.integration.workers.mill import Mill, eventually, file_appears
from tests.integration.workers.scripted import script, scripts
from workers import event_writer, settlement


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlement, "SQL_RETRY_S", (0.01,))
    monkeypatch.setattr(event_writer, "SQL_RETRY_S", 0.01)


class Mills:
    """Makes workers whose database loses replies."""

    def __init__(self, redis_url: str, database_url: str, namespace: str) -> None:
        self.place = redis_url, database_url, namespace

    @asynccontextmanager
    async def __call__(self, *lose: tuple[str, str], **settings: Any) -> AsyncIterator[Mill]:
        flaky = Flaky(self.place[1], *lose)
        async with Mill(*self.place, database=flaky, **settings) as mill:
            yield mill
            assert flaky.lose == [], "not everything that was to be lost was asked for"


@pytest.fixture
def a_mill(redis_url: str, database_url: str, namespace: str) -> Mills:
    return Mills(redis_url, database_url, namespace)


async def saved(mill: Mill, job_id: str) -> list[str]:
    """The answers saved for a job."""
    return [row["content"] for row in await mill.rows(messages, job_id=job_id, role="assistant")]


@pytest.mark.parametrize("lose", [[BEFORE], [AFTER], [BEFORE, BEFORE, AFTER], [BEFORE] * 10])
async def test_an_answer_waits_in_memory_and_is_saved_once(a_mill: Mills, lose: list[str]) -> None:
    async with a_mill(*((ENDING, when) for when in lose)) as mill:
        job_id = await mill.answer(script("a"))
        assert await mill.transitions(job_id) == ["accept", "claim", "finish"]
        assert await mill.kinds(job_id) == ["queued", "started", "text", "final"]
        assert await saved(mill, job_id) == ["a"]


async def test_a_failure_of_unknown_fate_is_charged_once(a_mill: Mills) -> None:
    async with a_mill((ENDING, AFTER)) as mill:
        job_id = await mill.answer(scripts(a1=[("raise", "own")], a2=["b"]))
        assert await mill.transitions(job_id) == ["accept", "claim", "fail", "claim", "finish"]


async def test_an_answer_whose_job_was_given_to_another_worker_meanwhile_is_not_saved(
    a_mill: Mills, redis_url: str, database_url: str, namespace: str
) -> None:
    async with (
        a_mill(*[(ENDING, BEFORE)] * 200, lease_s=0.2, lease_renew_s=0.1) as mill,
        Mill(redis_url, database_url, namespace, lease_s=0.2, lease_renew_s=0.1) as other,
    ):
        job_id = await mill.accept(scripts(a1=["first"], otherwise=["second"]))
        looking = mill.looking()

        async def expired() -> bool:
            return (await other.reconciler.reconcile()).expired == 1

        await eventually(expired)
        await other.desk.look()
        mill.database.lose.clear()  # type: ignore[attr-defined]
        await looking
        assert await other.transitions(job_id) == ["accept", "claim", "expire", "claim", "finish"]
        assert await saved(other, job_id) == ["second"]
        assert (await other.fold(job_id)).text == "second"


async def test_a_claim_that_did_not_happen_leaves_the_job_to_the_next_ring(a_mill: Mills) -> None:
    async with a_mill(("claim", BEFORE)) as mill:
        job_id = await mill.answer(script("a"))
        assert await mill.status(job_id) == "queued"
        await mill.desk.look()
        assert await mill.status(job_id) == "finished"


async def test_a_claim_whose_reply_was_lost_expires_because_nobody_renews_it(a_mill: Mills) -> None:
    async with a_mill(("claim", AFTER), lease_s=0.3, lease_renew_s=0.05) as mill:
        mill.renew_leases()
        job_id = await mill.answer(script("a"))
        assert await mill.status(job_id) == "running"
        assert mill.desk.held() == []

        async def expired() -> bool:
            return (await mill.reconciler.reconcile()).expired == 1

        await eventually(expired)
        await mill.desk.look()
        assert await mill.transitions(job_id) == ["accept", "claim", "expire", "claim", "finish"]


async def test_a_history_that_cannot_be_read_costs_no_retry(a_mill: Mills, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlement, "BUSY_DELAY_S", 0.0)
    async with a_mill(*[("read_branch", BEFORE)] * 3) as mill:
        session_id = (await mill.job(await mill.answer(script("before"))))["session_id"]
        job_id = await mill.answer(script(("history",), "a"), session_id=session_id)
        assert await mill.transitions(job_id) == ["accept", *["claim", "defer"] * 3, "claim", "finish"]


@pytest.mark.parametrize("lose", [[BEFORE], [AFTER]])
async def test_a_rebuild_of_unknown_fate_is_made_once(a_mill: Mills, tmp_path: Path, lose: list[str]) -> None:
    begun, go, last, end = (tmp_path / name for name in ("begun", "go", "last", "end"))
    async with a_mill(*(("rebuild", when) for when in lose)) as mill:
        job_id = await mill.accept(
            script("a", ("touch", str(begun)), ("until", str(go)), "b", ("touch", str(last)), ("until", str(end)))
        )
        looking = mill.looking()
        await file_appears(begun)
        await mill.log.forget([job_id])
        go.touch()
        await file_appears(last)

        async def rebuilt() -> bool:
            return (await mill.fold(job_id)).text == "ab"

        await eventually(rebuilt)
        end.touch()
        await looking
        assert await mill.transitions(job_id) == ["accept", "claim", "rebuild", "finish"]


async def test_an_accept_whose_reply_was_lost_may_be_repeated_under_its_id(a_mill: Mills) -> None:
    async with a_mill(("accept", AFTER)) as mill:
        job_id = "01890000-0000-7000-8000-000000000001"
        with pytest.raises(StorageUnavailable):
            await mill.accept(script("a"), job_id=job_id)
        await mill.accept(script("a"), job_id=job_id)
        await mill.desk.look()
        assert await mill.transitions(job_id) == ["accept", "claim", "finish"]


async def test_an_answer_no_database_takes_is_a_failure_and_then_a_dead_letter(
    mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise ValueError("the answer: secret words")

    monkeypatch.setattr(settle, "finish", refuse)
    job_id = await mill.answer(script("secret words"))
    assert await mill.transitions(job_id) == ["accept", "claim", "fail", "claim", "fail"]
    (letter,) = await mill.dead_letters(job_id)
    assert letter["error"]["code"] == "unstorable"
    assert "secret" not in letter["error"]["message"]


async def test_a_locked_sqlite_file_delays_the_answer_and_loses_nothing(
    lite_mill: Mill, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.database, "SQLITE_BUSY_S", 0.02)
    begun, go = tmp_path / "begun", tmp_path / "go"
    job_id = await lite_mill.accept(script("a", ("touch", str(begun)), ("until", str(go)), "b"))
    looking = lite_mill.looking()
    await file_appears(begun)
    other = sqlite3.connect(make_url(sqlite_url).database or "", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    refused: list[str] = []
    write = lite_mill.database.write

    async def counted(*arguments: Any, **named: Any) -> Any:
        try:
            return await write(*arguments, **named)
        except StorageUnavailable as error:
            refused.append(str(error))
            raise

    lite_mill.database.write = counted  # type: ignore[method-assign]
    go.touch()

    async def refused_often() -> bool:
        return len(refused) > 3

    await eventually(refused_often)
    assert await lite_mill.status(job_id) == "running"
    other.execute("ROLLBACK")
    other.close()
    await looking
    assert await saved(lite_mill, job_id) == ["ab"]
    assert "locked" in refused[0]


async def test_every_connection_of_postgresql_cut_in_the_middle_costs_nothing(
    redis_url: str, migrated_postgres_url: str, namespace: str, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    async with Mill(redis_url, migrated_postgres_url, namespace) as mill:
        job_id = await mill.accept(script("a", ("touch", str(begun)), ("until", str(go)), "b"))
        looking = mill.looking()
        await file_appears(begun)
        address = migrated_postgres_url.replace("+psycopg", "")
        async with await psycopg.AsyncConnection.connect(address, autocommit=True) as admin:
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        go.touch()
        async with asyncio.timeout(20):
            await looking
        assert await mill.transitions(job_id) == ["accept", "claim", "finish"]


async def test_a_postgresql_that_is_read_only_for_a_while_loses_no_answer(
    redis_url: str, migrated_postgres_url: str, namespace: str, tmp_path: Path
) -> None:
    """As after a failover, until the old server is gone."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    async with Mill(redis_url, migrated_postgres_url, namespace) as mill:
        job_id = await mill.accept(script("a", ("touch", str(begun)), ("until", str(go)), "b"))
        looking = mill.looking()
        await file_appears(begun)
        await _set_read_only(migrated_postgres_url, "on")
        go.touch()
        refused: list[Exception] = []
        write = mill.database.write

        async def counted(*arguments: Any, **named: Any) -> Any:
            try:
                return await write(*arguments, **named)
            except Exception as error:
                refused.append(error)
                raise

        mill.database.write = counted  # type: ignore[method-assign]

        async def refused_once() -> bool:
            return len(refused) > 1

        await eventually(refused_once)
        await _set_read_only(migrated_postgres_url, "off")
        await looking
        assert await mill.transitions(job_id) == ["accept", "claim", "finish"]


async def _set_read_only(url: str, value: str) -> None:
    address = url.replace("+psycopg", "")
    name = make_url(url).database
    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as admin:
        await admin.execute("SET default_transaction_read_only = off")
        await admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}'.encode())
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

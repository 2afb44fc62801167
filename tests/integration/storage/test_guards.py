"""Who may move a job and who may not, and who comes next when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, update

from schemas.errors import TransitionRefused
from storage.database import Database
from storage.jobs.claim import Claim
from storage.jobs.settle import (
    cancel,
    expire,
    fail,
    finish,
    lapse,
    rebuild,
    release,
)
from storage.tables import jobs, messages, sessions
from tests.integration.storage.acts import (
    BROKEN,
    HOPELESS,
    answer,
    ask,
    event_of,
    everything,
    job_row,
    pass_time,
    row,
    said,
    take,
    try_claim,
)
from tests.integration.storage.rules import check_rules

Settle = Callable[[Database, str, int], Any]
SETTLES: dict[str, Settle] = {
    "finish": lambda db, job, epoch: db.write(finish, job, epoch, said("x"), None),
    "fail": lambda db, job, epoch: db.write(fail, job, epoch, BROKEN, delay_us=0),
    "hopeless": lambda db, job, epoch: db.write(fail, job, epoch, HOPELESS, delay_us=0),
    "release": lambda db, job, epoch: db.write(release, job, epoch),
    "cancel": lambda db, job, epoch: db.write(cancel, job, epoch, "user", said("x")),
    "expire": lambda db, job, epoch: db.write(expire, job, epoch),
    "lapse": lambda db, job, epoch: db.write(lapse, job, epoch),
    "rebuild": lambda db, job, epoch: db.write(rebuild, job, epoch, "x", []),
}


async def _superseded(database: Database) -> Claim:
    """An attempt whose job another attempt has by now; everything that could be past is past."""
    await ask(database, deadline_s=10)
    zombie = await take(database, worker="zombie")
    await database.write(release, zombie.job_id, zombie.epoch)
    await take(database, worker="other")
    await database.write(pass_time, 60)
    return zombie


@pytest.mark.parametrize("name", SETTLES)
async def test_an_older_epoch_can_write_nothing(database: Database, name: str) -> None:
    zombie = await _superseded(database)
    before = await everything(database)
    for epoch in (0, zombie.epoch, zombie.epoch + 1, 99):
        with pytest.raises(TransitionRefused):
            await SETTLES[name](database, zombie.job_id, epoch)
    assert await everything(database) == before


@pytest.mark.parametrize("name", SETTLES)
async def test_an_ended_job_cannot_be_moved(database: Database, name: str) -> None:
    await ask(database, deadline_s=10)
    claimed = await take(database)
    done = await answer(database, claimed)
    await database.write(pass_time, 60)
    before = await everything(database)
    for epoch in (claimed.epoch, done.epoch):
        with pytest.raises(TransitionRefused):
            await SETTLES[name](database, claimed.job_id, epoch)
    assert await everything(database) == before


@pytest.mark.parametrize("name", SETTLES)
async def test_a_job_that_is_not_there_cannot_be_moved(database: Database, name: str) -> None:
    with pytest.raises(TransitionRefused):
        await SETTLES[name](database, "no such job", 1)


@pytest.mark.parametrize("name", [name for name in SETTLES if name not in ("cancel", "lapse")])
async def test_a_queued_job_has_no_attempt_to_end(database: Database, name: str) -> None:
    accepted = await ask(database, deadline_s=10)
    before = await everything(database)
    with pytest.raises(TransitionRefused):
        await SETTLES[name](database, accepted.job_id, 0)
    assert await everything(database) == before


ENDINGS = ["finish", "hopeless", "cancel"]


@pytest.mark.parametrize("name", ENDINGS)
async def test_every_end_hands_the_session_on(database: Database, name: str) -> None:
    opened = await ask(database, "one")
    heir = await ask(database, "two", session_id=opened.session_id, queue="bulk")
    third = await ask(database, "three", session_id=opened.session_id)
    claimed = await take(database)
    assert await try_claim(database, "bulk") is None
    recorded = await SETTLES[name](database, claimed.job_id, claimed.epoch)
    assert recorded.wakes == "bulk", "the heir's lane is rung"
    assert (await job_row(database, heir.job_id))["head"]
    assert not (await job_row(database, third.job_id))["head"]
    await check_rules(database)
    assert (await take(database, "bulk")).job_id == heir.job_id


async def test_a_lapse_hands_the_session_on(database: Database) -> None:
    opened = await ask(database, "one", deadline_s=10)
    heir = await ask(database, "two", session_id=opened.session_id)
    await database.write(pass_time, 11)
    recorded = await database.write(lapse, opened.job_id, 0)
    assert recorded.wakes == "chat"
    await check_rules(database)
    assert (await take(database)).job_id == heir.job_id


async def test_an_end_out_of_turn_hands_nothing_on(database: Database) -> None:
    opened = await ask(database, "one")
    middle = await ask(database, "two", session_id=opened.session_id)
    await ask(database, "three", session_id=opened.session_id)
    recorded = await database.write(cancel, middle.job_id, 0, "user")
    assert recorded.wakes is None
    await check_rules(database)
    await answer(database, await take(database))
    assert (await take(database)).user_message == "three"
    await check_rules(database)


async def test_a_failure_of_the_commit_writes_nothing(database: Database) -> None:
    opened = await ask(database, "one")
    await ask(database, "two", session_id=opened.session_id)
    claimed = await take(database)
    before = await everything(database)

    def finish_and_break(connection: Connection) -> None:
        finish(connection, claimed.job_id, claimed.epoch, said("x"), None)
        raise KeyError

    with pytest.raises(KeyError):
        await database.write(finish_and_break)
    assert await everything(database) == before
    await answer(database, claimed)


@pytest.mark.parametrize("name", ["fail", "hopeless", "release", "expire"])
async def test_whatever_ends_an_attempt_that_was_to_be_stopped_cancels_it(database: Database, name: str) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(flag, claimed.job_id)
    await database.write(pass_time, 16)
    recorded = await SETTLES[name](database, claimed.job_id, claimed.epoch)
    event = await event_of(database, recorded)
    assert (recorded.kind, event["kind"], event["reason"]) == ("cancel", "cancelled", "the user left")
    job = await job_row(database, claimed.job_id)
    assert (job["status"], job["failures"], job["releases"]) == ("cancelled", 0, 0)
    await check_rules(database)


@pytest.mark.parametrize("settle", [fail, release], ids=["fail", "release"])
async def test_the_text_of_an_attempt_that_was_to_be_stopped_is_saved(database: Database, settle: Any) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(flag, claimed.job_id)
    arguments = (BROKEN,) if settle is fail else ()
    options = {"delay_us": 0} if settle is fail else {}
    await database.write(settle, claimed.job_id, claimed.epoch, *arguments, **options, response=said("half"))
    saved = await row(database, messages, role="assistant")
    assert (saved["content"], saved["status"]) == ("half", "cancelled")
    assert (await row(database, sessions))["active_leaf"] == saved["id"]


async def test_a_finish_beats_the_wish_to_stop(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(flag, claimed.job_id)
    assert (await answer(database, claimed)).kind == "finish"
    assert (await job_row(database, claimed.job_id))["status"] == "finished"
    await check_rules(database)


def flag(connection: Connection, job_id: str) -> None:
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(cancel_reason="the user left"))

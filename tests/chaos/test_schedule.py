"""What happens in a chaos run comes from its seed alone."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from tests.chaos.faults import DATABASE, all_names, faults_for, maker
from tests.chaos.scale import Scale
from tests.chaos.schedule import Schedule

SHORT, LONG = Scale.of(1), Scale.of(30)


@pytest.mark.parametrize("dialect", DATABASE)
def test_a_seed_is_a_schedule_and_another_seed_is_another_one(dialect: str) -> None:
    faults = faults_for(dialect)
    assert Schedule.of(1, 50, SHORT, faults) == Schedule.of(1, 50, SHORT, faults)
    assert Schedule.of(1, 50, SHORT, faults).steps != Schedule.of(2, 50, SHORT, faults).steps
    assert Schedule.of(1, 50, SHORT, faults).conversations != Schedule.of(2, 50, SHORT, faults).conversations


@pytest.mark.parametrize("dialect", DATABASE)
def test_each_round_holds_every_fault_once_and_never_two_of_one_family_at_the_same_time(dialect: str) -> None:
    faults = faults_for(dialect)
    schedule = Schedule.of(3, 1, SHORT, faults)
    first_round = schedule.steps[: schedule.round_size]
    assert Counter(fault for step in first_round for fault in step.faults) == Counter(faults)
    for step in schedule.steps:
        families = [fault.family for fault in step.faults]
        assert len(set(families)) == len(families)
    assert any(len(step.faults) == 2 for step in schedule.steps)


def test_only_the_chosen_faults_are_made() -> None:
    assert [fault.name for fault in faults_for("sqlite", ["kill_gateway", "stop_database"])] == ["kill_gateway"]
    assert {fault.name for dialect in DATABASE for fault in faults_for(dialect)} == set(all_names())
    for dialect in DATABASE:
        assert all(callable(maker(fault, dialect)) for fault in faults_for(dialect))


@pytest.mark.parametrize("scale", [SHORT, LONG])
def test_a_mix_has_as_many_jobs_as_asked_for_of_every_kind(scale: Scale) -> None:
    conversations = Schedule.of(5, 300, scale, []).conversations
    turns = [turn for conversation in conversations for turn in conversation.turns]
    assert len(turns) == len({turn.job_id for turn in turns}) == 300
    assert all(str(uuid.UUID(turn.job_id)) == turn.job_id == turn.body["job_id"] for turn in turns)
    assert {turn.via for turn in turns} == {"post", "stream", "raw"}
    assert {"interrupt", "reject", None} == {turn.body.get("if_busy") for turn in turns}
    assert any("messages" in turn.body for turn in turns)
    assert any(turn.cancel_after_s is not None for turn in turns)
    keys = Counter(key for turn in turns for key in turn.keys)
    assert keys
    assert max(keys.values()) == 1
    assert ("silent" in {turn.kind for turn in turns}) == (not scale.short)


def test_a_worker_that_stands_still_outlives_its_lease_and_an_outage_of_the_database_does_too() -> None:
    for scale in (SHORT, LONG):
        assert scale.lease_renew_s * 2 <= scale.lease_s < scale.freeze_s
    assert LONG.outage_s == 20
    assert LONG.outage_s > LONG.lease_s

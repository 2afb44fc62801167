"""Every check of the chaos harness can fail: records of a good run are doctored, and the right rule is broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from schemas.job_event import EventId, encode_event
from tests.chaos.checker import check_all
from tests.chaos.evidence import Client, Evidence, LogLine, Sitting
from tests.chaos.happenings import Happening, pid_of
from tests.chaos.records import DEAD, FIRST, KEY, KILLED, SECOND, SESSION, WELL, good_run, stream

Doctor = Callable[[Evidence], None]


def test_a_run_as_it_should_be_breaks_no_rule_and_every_rule_was_held_against_something() -> None:
    findings = check_all(good_run())
    assert [finding for finding in findings if finding.wrong] == []
    assert [finding.rule for finding in findings if not finding.checked] == []


def parts(evidence: Evidence, job_id: str) -> Client:
    return next(client for client in evidence.clients if client.job_id == job_id and client.name == "parts")


def whole(evidence: Evidence, job_id: str) -> Sitting:
    client = next(client for client in evidence.clients if client.job_id == job_id and client.name == "whole")
    return client.sittings[0]


def replace_in_whole(evidence: Evidence, job_id: str, old: bytes, new: bytes) -> None:
    sitting = whole(evidence, job_id)
    assert old in sitting.body
    sitting.body = sitting.body.replace(old, new)


def without(body: bytes, event_id: str) -> bytes:
    """A stream without one of its events."""
    blocks = [block for block in body.split(b"\n\n") if not block.startswith(b"id: %s\n" % event_id.encode())]
    assert len(blocks) == len(body.split(b"\n\n")) - 1
    return b"\n\n".join(blocks)


def an_accepted_job_is_not_in_sql(evidence: Evidence) -> None:
    for table in (evidence.jobs, evidence.transitions, evidence.attempts, evidence.logs):
        table.pop(DEAD)
    evidence.clients = [client for client in evidence.clients if client.job_id != DEAD]


def a_job_never_ends(evidence: Evidence) -> None:
    evidence.jobs[DEAD]["status"] = "queued"


def a_job_ends_twice(evidence: Evidence) -> None:
    evidence.transitions[FIRST].append({**evidence.transitions[FIRST][-1], "epoch": 5, "position": 99})
    evidence.jobs[FIRST]["epoch"] = 5


def a_finished_job_is_called_dead(evidence: Evidence) -> None:
    evidence.jobs[FIRST]["status"] = "dead"


def a_dead_letter_is_missing(evidence: Evidence) -> None:
    evidence.dead_letters.clear()


def a_client_never_sees_the_end(evidence: Evidence) -> None:
    sitting = whole(evidence, FIRST)
    sitting.body = without(sitting.body, "4-1")


def an_accepted_job_is_not_found(evidence: Evidence) -> None:
    parts(evidence, FIRST).sittings[1].status = 404


def a_client_is_sent_away_too_early(evidence: Evidence) -> None:
    parts(evidence, FIRST).sittings[-1].cursor = "3-2"


def the_reply_a_client_got_is_not_the_saved_one(evidence: Evidence) -> None:
    evidence.messages[f"a2-{FIRST}"]["content"] = "two four."


def the_terminal_event_has_other_bytes(evidence: Evidence) -> None:
    replace_in_whole(evidence, FIRST, b'"outcome":"ok"', b'"outcome":"step_limit"')


def a_client_misses_a_piece(evidence: Evidence) -> None:
    sitting = whole(evidence, FIRST)
    sitting.body = without(sitting.body, "3-3")


def a_client_gets_a_piece_twice(evidence: Evidence) -> None:
    sitting = whole(evidence, SECOND)
    piece = next(block for block in sitting.body.split(b"\n\n") if b"event: text" in block) + b"\n\n"
    sitting.body = sitting.body.replace(piece, piece + piece)


def a_reconnected_client_gets_a_hole(evidence: Evidence) -> None:
    sitting = parts(evidence, FIRST).sittings[2]
    first = sitting.body.split(b"\n\n")[1].split(b"\n")[0].removeprefix(b"id: ").decode()
    sitting.body = without(sitting.body, first)


def an_id_means_two_things(evidence: Evidence) -> None:
    replace_in_whole(evidence, SECOND, b'"text":"Well, "', b'"text":"Hell, "')


def a_character_is_wrong_before_the_end(evidence: Evidence) -> None:
    replace_in_whole(evidence, FIRST, b'"text":"two "', b'"text":"twoo "')


def the_last_piece_came_too_late_for_everybody(evidence: Evidence) -> None:
    for client in evidence.clients:
        for sitting in client.sittings:
            if b"id: 3-4\n" in sitting.body:
                sitting.body = without(sitting.body, "3-4")


def a_log_goes_on_behind_its_end(evidence: Evidence) -> None:
    late = encode_event("text", FIRST, 1, text="late")
    evidence.logs[FIRST].append(LogLine(EventId(4, 2), late, False))


def a_log_lost_its_end(evidence: Evidence) -> None:
    evidence.logs[FIRST].pop()


def a_log_has_a_hole(evidence: Evidence) -> None:
    del evidence.logs[FIRST][-3]


def a_log_holds_another_terminal_event_than_sql(evidence: Evidence) -> None:
    last = evidence.logs[DEAD][-1]
    evidence.logs[DEAD][-1] = LogLine(last.id, last.event.replace(b"letter", b"better"), True)


def a_log_folds_to_another_text(evidence: Evidence) -> None:
    evidence.messages[f"a0-{SECOND}"]["content"] = "Hell, "


def a_write_tool_ran_twice(evidence: Evidence) -> None:
    evidence.effects[FIRST, KEY] = 2


def an_answer_says_what_was_not_done(evidence: Evidence) -> None:
    evidence.effects.clear()


def a_tool_wrote_unasked(evidence: Evidence) -> None:
    evidence.effects[SECOND, KEY] = 1


def a_deploy_is_charged(evidence: Evidence) -> None:
    (killed,) = evidence.timeline.happenings
    killed.victims, killed.told = frozenset(), frozenset({pid_of(KILLED)})


def an_outage_of_the_database_is_charged(evidence: Evidence) -> None:
    (killed,) = evidence.timeline.happenings
    killed.victims, killed.family = frozenset(), "database"


def a_worker_that_was_well_lost_its_job(evidence: Evidence) -> None:
    evidence.attempts[FIRST][0]["worker"] = WELL


def a_model_that_was_well_is_blamed(evidence: Evidence) -> None:
    evidence.jobs[DEAD]["model"] = "demo"


def a_fault_of_ours_is_charged(evidence: Evidence) -> None:
    evidence.attempts[DEAD][0]["error"] = {"code": "unstorable"}


def two_turns_ran_side_by_side(evidence: Evidence) -> None:
    claim = next(step for step in evidence.transitions[SECOND] if step["kind"] == "claim")
    claim["position"] = evidence.transitions[FIRST][-1]["position"] - 0.5


def an_attempt_begins_before_the_last_one_ended(evidence: Evidence) -> None:
    evidence.transitions[FIRST] = [step for step in evidence.transitions[FIRST] if step["kind"] != "expire"]


def turns_swapped_places(evidence: Evidence) -> None:
    evidence.asked[FIRST].place, evidence.asked[SECOND].place = 1, 0


def a_question_hangs_in_the_wrong_place(evidence: Evidence) -> None:
    evidence.messages[f"q-{SECOND}"]["parent_id"] = f"q-{FIRST}"


def an_answer_was_saved_beside_another(evidence: Evidence) -> None:
    one = evidence.messages[f"a0-{FIRST}"]
    evidence.messages["twin"] = {**one, "id": "twin"}


def the_active_branch_is_an_old_one(evidence: Evidence) -> None:
    evidence.sessions[SESSION]["active_leaf"] = f"a2-{FIRST}"


def a_repeated_request_made_another_job(evidence: Evidence) -> None:
    evidence.asked[SECOND].repeat = 202


def another_body_was_taken_under_the_same_id(evidence: Evidence) -> None:
    evidence.asked[SECOND].other_body = 200


def the_users_text_is_stored_twice(evidence: Evidence) -> None:
    evidence.messages["again"] = {**evidence.messages[f"q-{SECOND}"], "id": "again"}


def a_cancelled_job_was_tried_again(evidence: Evidence) -> None:
    last = evidence.transitions[SECOND][-1]
    last["kind"] = "release"


def rows_are_half_written(evidence: Evidence) -> None:
    evidence.broken_rules.append("a job has its body")


def a_process_ended_on_its_own(evidence: Evidence) -> None:
    evidence.unruly.append("worker0 ended on its own")


def an_answer_tells_nothing(evidence: Evidence) -> None:
    evidence.bad_answers.append("500 to POST /v1/jobs")


DOCTORS: list[tuple[Doctor, str]] = [
    (an_accepted_job_is_not_in_sql, "accepted jobs lost"),
    (a_job_never_ends, "accepted jobs lost"),
    (a_job_ends_twice, "double outcomes"),
    (a_finished_job_is_called_dead, "double outcomes"),
    (a_dead_letter_is_missing, "double outcomes"),
    (a_client_never_sees_the_end, "clients that never saw the end"),
    (an_accepted_job_is_not_found, "clients that never saw the end"),
    (a_client_is_sent_away_too_early, "clients that never saw the end"),
    (the_reply_a_client_got_is_not_the_saved_one, "folds not equal to the saved reply"),
    (the_terminal_event_has_other_bytes, "clients' transitions not those of SQL"),
    (a_client_misses_a_piece, "events missing, repeated or out of order"),
    (a_client_gets_a_piece_twice, "events missing, repeated or out of order"),
    (a_reconnected_client_gets_a_hole, "events missing, repeated or out of order"),
    (an_id_means_two_things, "events missing, repeated or out of order"),
    (a_character_is_wrong_before_the_end, "characters wrong before the end"),
    (the_last_piece_came_too_late_for_everybody, "characters wrong before the end"),
    (a_log_goes_on_behind_its_end, "logs that are not what SQL says"),
    (a_log_lost_its_end, "logs that are not what SQL says"),
    (a_log_has_a_hole, "logs that are not what SQL says"),
    (a_log_holds_another_terminal_event_than_sql, "logs that are not what SQL says"),
    (a_log_folds_to_another_text, "logs that are not what SQL says"),
    (a_write_tool_ran_twice, "write effects repeated or invented"),
    (an_answer_says_what_was_not_done, "write effects repeated or invented"),
    (a_tool_wrote_unasked, "write effects repeated or invented"),
    (a_deploy_is_charged, "failures charged to deploys"),
    (an_outage_of_the_database_is_charged, "failures charged to a database outage"),
    (a_worker_that_was_well_lost_its_job, "failures charged without a cause"),
    (a_model_that_was_well_is_blamed, "failures charged without a cause"),
    (a_fault_of_ours_is_charged, "failures charged without a cause"),
    (two_turns_ran_side_by_side, "order violations in sessions"),
    (an_attempt_begins_before_the_last_one_ended, "order violations in sessions"),
    (turns_swapped_places, "order violations in sessions"),
    (a_question_hangs_in_the_wrong_place, "order violations in sessions"),
    (an_answer_was_saved_beside_another, "order violations in sessions"),
    (the_active_branch_is_an_old_one, "order violations in sessions"),
    (a_repeated_request_made_another_job, "requests made twice of one"),
    (another_body_was_taken_under_the_same_id, "requests made twice of one"),
    (the_users_text_is_stored_twice, "requests made twice of one"),
    (a_cancelled_job_was_tried_again, "cancelled jobs that went on"),
    (rows_are_half_written, "rows half written or against the rules"),
    (a_process_ended_on_its_own, "processes and answers out of order"),
    (an_answer_tells_nothing, "processes and answers out of order"),
]


@pytest.mark.parametrize(("doctor", "rule"), DOCTORS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_doctored_record_breaks_its_rule(doctor: Doctor, rule: str) -> None:
    evidence = good_run()
    doctor(evidence)
    assert rule in [finding.rule for finding in check_all(evidence) if finding.wrong]


def test_every_rule_is_broken_by_some_doctored_record() -> None:
    assert {rule for _, rule in DOCTORS} == {finding.rule for finding in check_all(good_run())}


def test_a_fault_that_kept_pieces_away_excuses_a_short_screen_but_no_wrong_one() -> None:
    evidence = good_run()
    claimed = evidence.attempts[FIRST][1]["started_at"]
    evidence.timeline.happenings.append(Happening("stop_redis", "redis", "", claimed, claimed + 1))
    the_last_piece_came_too_late_for_everybody(evidence)
    assert "characters wrong before the end" not in [one.rule for one in check_all(evidence) if one.wrong]
    a_character_is_wrong_before_the_end(evidence)
    assert "characters wrong before the end" in [one.rule for one in check_all(evidence) if one.wrong]


def test_a_claim_whose_answer_was_lost_is_noted_and_not_charged_to_anybody() -> None:
    evidence = good_run()
    evidence.attempts[FIRST][0]["worker"] = WELL
    evidence.begun.discard((FIRST, 1))
    findings = check_all(evidence)
    assert [finding.rule for finding in findings if finding.wrong] == []
    assert [len(finding.noted) for finding in findings if finding.noted] == [1]


def test_a_frame_that_was_cut_off_is_none() -> None:
    evidence = good_run()
    sitting = whole(evidence, FIRST)
    parts(evidence, FIRST).sittings.insert(0, Sitting(None, 200, sitting.body[: len(sitting.body) // 2]))
    assert [finding for finding in check_all(evidence) if finding.wrong] == []
    assert stream([]) == b""

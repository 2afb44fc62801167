"""Only a process that has been in touch with the database for a whole lease may call somebody else's lease past."""

from __future__ import annotations

import random

from workers.contact import TOLERANCE_US, Contact

SECOND = 1_000_000
LEASE = 15 * SECOND


def looks(contact: Contact, seconds: int, *, database: int = 0, monotonic: int = 0) -> tuple[int, int]:
    """Look once a second, both clocks advancing alike from the given readings; returns the last ones."""
    for second in range(seconds + 1):
        contact.seen(database + second * SECOND, monotonic + second * SECOND)
    return database + seconds * SECOND, monotonic + seconds * SECOND


def test_a_process_that_has_just_started_may_not_expire_anything() -> None:
    contact = Contact(LEASE)
    assert not contact.is_long
    contact.seen(0, 0)
    assert not contact.is_long


def test_a_whole_lease_of_contact_is_long_and_a_moment_less_is_not() -> None:
    contact = Contact(LEASE)
    database, monotonic = looks(contact, 14)
    contact.seen(database + SECOND - 1, monotonic + SECOND - 1)
    assert not contact.is_long
    contact.seen(database + SECOND, monotonic + SECOND)
    assert contact.is_long


def test_after_an_outage_the_contact_begins_anew() -> None:
    contact = Contact(LEASE)
    database, monotonic = looks(contact, 20)
    contact.lost()
    assert not contact.is_long
    database, monotonic = looks(contact, 14, database=database + SECOND, monotonic=monotonic + SECOND)
    assert not contact.is_long
    contact.seen(database + SECOND, monotonic + SECOND)
    assert contact.is_long


def test_an_outage_that_nobody_noticed_begins_it_anew_when_the_clocks_disagree() -> None:
    contact = Contact(LEASE)
    looks(contact, 20)
    contact.seen(21 * SECOND, 60 * SECOND)
    assert not contact.is_long


def test_a_step_of_the_databases_clock_in_either_direction_begins_it_anew() -> None:
    for step in (-3600 * SECOND, -2 * TOLERANCE_US, 2 * TOLERANCE_US, 3600 * SECOND):
        contact = Contact(LEASE)
        database, monotonic = looks(contact, 20)
        contact.seen(database + SECOND + step, monotonic + SECOND)
        assert not contact.is_long, step
        looks(contact, 15, database=database + step + 2 * SECOND, monotonic=monotonic + 2 * SECOND)
        assert contact.is_long, step


def test_looks_far_apart_prove_nothing_about_the_time_between_them() -> None:
    contact = Contact(LEASE, longest_gap_us=5 * SECOND)
    database, monotonic = looks(contact, 20)
    contact.seen(database + 5 * SECOND, monotonic + 5 * SECOND)
    assert contact.is_long
    contact.seen(database + 11 * SECOND, monotonic + 11 * SECOND)
    assert not contact.is_long


def test_a_small_drift_between_two_looks_is_tolerated() -> None:
    contact = Contact(LEASE)
    for second in range(16):
        contact.seen(second * SECOND + second % 2 * (TOLERANCE_US - 1), second * SECOND)
    assert contact.is_long


def test_a_machine_that_slept_with_the_database_running_on_begins_anew() -> None:
    # The monotonic clock stands still while a machine is suspended.
    contact = Contact(LEASE)
    database, monotonic = looks(contact, 20)
    contact.seen(database + 600 * SECOND, monotonic + SECOND)
    assert not contact.is_long


def test_contact_is_never_long_before_a_whole_lease_of_undisturbed_looks() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        contact, database, monotonic, undisturbed = Contact(LEASE), 0, 0, None
        for _ in range(80):
            passed = chance.randrange(1, 3 * SECOND)
            database, monotonic = database + passed, monotonic + passed
            match chance.choices(("look", "outage", "step"), (20, 1, 1))[0]:
                case "outage":
                    contact.lost()
                    undisturbed = None
                    continue
                case "step":
                    database += chance.choice((-1, 1)) * chance.randrange(TOLERANCE_US + 1, 10 * SECOND)
                    # Seen only if there was a look before it, with which it can be compared.
                    undisturbed = monotonic
            contact.seen(database, monotonic)
            undisturbed = monotonic if undisturbed is None else undisturbed
            assert contact.is_long == (monotonic - undisturbed >= LEASE), seed

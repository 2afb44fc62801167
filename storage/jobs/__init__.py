"""Every transition of a job, each one guarded UPDATE in one short transaction.

    accept      new job, or the one that has its id already            accept.py
    claim       the next runnable job of a lane, with what it needs     claim.py
    interrupt   what is answered and what waits, for a new message      interrupt.py
    renew       leases, and who has lost or must stop                   lease.py
    finish, fail, defer, release, cancel, rebuild, expire, lapse        settle.py
    redrive, discard: what a person decides about a dead letter         redrive.py
    what all that end an epoch have in common                           move.py
    what a reconciler looks for                                         reconcile.py

A transition adds 1 to the job's epoch, writes one row of `transitions` and, where the job leaves its place, hands the
session on to the next one. Whoever holds an older epoch meets no row and gets TransitionRefused.
"""

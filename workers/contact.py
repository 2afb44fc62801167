"""Whether this process may call another one's lease past."""

from __future__ import annotations

#: The database's clock and this process's may drift apart by this much between two looks before something is wrong.
TOLERANCE_US = 500_000


class Contact:
    """How long this process has been in unbroken touch with the database, both clocks advancing alike.

    After an outage of the database every lease looks past: no worker could renew. Only a process that has been in
    touch for a whole lease has seen that somebody else could have renewed and did not.
    """

    def __init__(self, needed_us: int, longest_gap_us: int | None = None) -> None:
        self._needed_us = needed_us
        #: Looks further apart than this prove nothing: perhaps everything stood still in between, renewals too.
        self._longest_gap_us = needed_us if longest_gap_us is None else longest_gap_us
        self._since: int | None = None
        self._last: tuple[int, int] | None = None

    def seen(self, database_us: int, monotonic_us: int) -> None:
        """The database answered: its clock, and this process's monotonic clock, in microseconds."""
        if self._last is not None:
            passed = monotonic_us - self._last[1]
            if abs(database_us - self._last[0] - passed) > TOLERANCE_US or passed > self._longest_gap_us:
                self._since = None
        if self._since is None:
            self._since = monotonic_us
        self._last = (database_us, monotonic_us)

    def lost(self) -> None:
        """The database did not answer."""
        self._since = self._last = None

    @property
    def is_long(self) -> bool:
        """Whether the contact has lasted long enough to expire leases."""
        return self._since is not None and self._last is not None and self._last[1] - self._since >= self._needed_us

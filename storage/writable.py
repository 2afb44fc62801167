"""Whether SQL takes writes, and not only answers questions."""

from __future__ import annotations

from sqlalchemy import Connection, exists, false, literal_column, select, update

from storage.jobs.statements import read_clock
from storage.tables import jobs, tenants

#: Changes nothing, but a PostgreSQL that is read-only refuses it.
_TOUCH = update(tenants).where(false()).values(created_at=tenants.c.created_at)
#: Writes one page, which a full disk refuses; nothing reads this number.
_WRITE_A_PAGE = "PRAGMA user_version = 0"
#: As the partial index spells it.
_SOMETHING_RUNS = select(exists().where(literal_column("jobs.status = 'running'")).select_from(jobs))


def read_clock_for_writing(connection: Connection) -> int:
    """The database's time in microseconds, from a transaction that writes; for `Database.write`.

    Raises what any write would: reads may go on where none is possible. While no job runs, SQLite writes nothing: there
    is no lease to be wrong about, and an idle machine is left in peace.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(_TOUCH)
    elif connection.execute(_SOMETHING_RUNS).scalar_one():
        connection.exec_driver_sql(_WRITE_A_PAGE)
    return read_clock(connection)

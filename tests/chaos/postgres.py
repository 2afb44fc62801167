"""A PostgreSQL server that is stopped, crashes and comes back, and whose clock can be stepped."""

from __future__ import annotations

import signal

import psycopg

from tests.postgres_server import PostgresServer

#: A function of the same name that is found first: the program's own statements see a clock that can be set. STABLE
#: like the original, so that indexes are used as ever.
SHADOWED_CLOCK = (
    "CREATE SCHEMA chaos",
    "CREATE TABLE chaos.clock (step interval NOT NULL)",
    "INSERT INTO chaos.clock VALUES ('0')",
    """CREATE FUNCTION chaos.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS
    'SELECT pg_catalog.statement_timestamp() + (SELECT step FROM chaos.clock)'""",
)
END_S = 30.0


class ChaosPostgres(PostgresServer):
    """The server of a run; every call blocks."""

    def stop(self, number: signal.Signals) -> None:
        """SIGINT ends it in order, SIGQUIT as a crash: it recovers at its next start."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(END_S)

    def start_again(self) -> None:
        """Start it at the same address."""
        if not self._start(self._folder / "data"):
            raise AssertionError("PostgreSQL did not come back:\n" + self._log.read_text(encoding="utf-8")[-3000:])

    def shadow_clock(self, database: str) -> None:
        """Let `step_clock` decide what the program takes for the time; before anybody else connects."""
        self.execute(database, *SHADOWED_CLOCK)
        self.execute(database, f'ALTER DATABASE "{database}" SET search_path = chaos, pg_catalog, public')

    def step_clock(self, database: str, step_us: int) -> None:
        """The program's clock is the machine's and so many microseconds from now on."""
        self.execute(database, f"UPDATE chaos.clock SET step = interval '{step_us} microseconds'")

    def execute(self, database: str, *statements: str) -> None:
        address = self.url(database).replace("+psycopg", "") + "?connect_timeout=10"
        with psycopg.connect(address, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def cut_connections(self, database: str) -> None:
        """End every connection to a database but this one."""
        self.execute(
            database,
            "SET default_transaction_read_only = off",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )

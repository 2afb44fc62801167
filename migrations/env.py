"""Alembic's entry: runs on the connection, and in the transaction, that storage/migrate.py hands over."""

from __future__ import annotations

from alembic import context

from storage.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run migrations with `chatmill migrate`, not with alembic")
context.configure(connection=connection, target_metadata=metadata, render_as_batch=False)
with context.begin_transaction():
    context.run_migrations()

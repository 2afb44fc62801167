"""Alembic migrations of the SQL schema; run by `chatmill migrate`."""

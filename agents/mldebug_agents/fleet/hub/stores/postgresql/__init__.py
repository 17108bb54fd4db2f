"""PostgreSQL: one memory for several hubs, and room for many nodes; old weeks go as whole partitions."""

from importlib.util import find_spec
from pathlib import Path

import msgspec

from mldebug.core.errors import ToolError, UsageError
from mldebug.fleet.hub_model import FleetStore
from mldebug_agents.fleet.stream import LIBRARY


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the store. `database`: a connection string of libpq, without a password; `password_file`: one line."""

    database: str = ""
    password_file: Path | None = None


def create(options: Options) -> FleetStore:
    """Build the store in a PostgreSQL database. Raises ToolError where psycopg is not installed, UsageError where the address is none."""
    if find_spec("psycopg") is None:
        raise ToolError("a hub needs the package psycopg to speak to PostgreSQL", LIBRARY)
    from mldebug_agents.fleet.hub.stores.postgresql.links import Links, conninfo
    from mldebug_agents.fleet.hub.stores.postgresql.store import PostgresStore

    if not options.database:
        return PostgresStore(Links(""))  # of libpq's own environment: PGHOST and so on
    try:
        return PostgresStore(Links(conninfo(options.database), options.password_file))
    except ValueError as error:
        raise UsageError(f"hub.database: {error}", "write it like postgresql://mldebug@db01/mldebug") from error  # fmt: skip

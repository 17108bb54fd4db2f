"""A real PostgreSQL server of our own: as an ordinary user, in a temporary folder, at a Unix socket alone."""

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path

import psycopg
import pytest

from processes.harness import wait_for

PLACES = ("/usr/lib/postgresql/15/bin", "/usr/lib/postgresql/16/bin", "/usr/lib/postgresql/17/bin")
USER = "mldebug"


def binary(name: str) -> str:
    """The path of a program of PostgreSQL, which Debian keeps out of PATH. Skips where there is none."""
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *PLACES)))
    if found is None:
        pytest.skip(f"needs PostgreSQL: {name} (Debian: postgresql)")
    return found


class PostgresServer:
    """One server. It refuses to run as root: then the user `nobody` does it."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self.folder = folder
        self._as = ["setpriv", "--pdeathsig=INT"]  # it outlives no test that was killed
        if os.geteuid() == 0:
            self._as += ["--reuid=nobody", "--regid=nogroup", "--clear-groups"]
            shutil.chown(folder, "nobody", "nogroup")
        self._durable = "on" if durable else "off"
        self.process: subprocess.Popen[bytes] | None = None
        make = [*self._as, binary("initdb"), "-D", f"{folder}/data", "-U", USER, "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]  # fmt: skip
        done = subprocess.run(make, capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        """Start it, and wait until it answers; after kill -9, its last children may have to end first."""
        argv = [*self._as, binary("postgres"), "-D", f"{self.folder}/data", "-k", str(self.folder), "-c", "listen_addresses=", "-c", f"fsync={self._durable}", "-c", "max_connections=60"]  # fmt: skip

        def answers() -> bool:
            if self.process is None or self.process.poll() is not None:
                with (self.folder / "log").open("ab") as log:
                    self.process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self.folder, start_new_session=True)  # fmt: skip
            with suppress(psycopg.Error):
                psycopg.connect(self.dsn("postgres"), connect_timeout=3).close()
                return True
            return False

        wait_for("PostgreSQL", answers, 90)

    def kill(self) -> None:
        """End it without a word: its children notice, as after a crash."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(30)
            self.process = None

    def stop(self) -> None:
        """End it, and remove its folder."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)
            self.process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def dsn(self, database: str) -> str:
        """The connection string of a database."""
        return f"host={self.folder} user={USER} dbname={database}"

    def database(self, name: str) -> str:
        """The connection string of a database that is made where there is none yet."""
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as link:
            if link.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:  # fmt: skip
                link.execute(f'CREATE DATABASE "{name}"'.encode())
        return self.dsn(name)


def temporary_server(*, durable: bool = True) -> PostgresServer:
    """A server that runs, in a folder whose path is short enough for a socket."""
    made = PostgresServer(Path(tempfile.mkdtemp(prefix="mldebug-pg-", dir="/tmp")), durable=durable)
    made.start()
    return made


@cache
def shared_server() -> PostgresServer:
    """The one server of all tests of this process."""
    made = temporary_server(durable=False)
    atexit.register(made.stop)
    return made


def database_of(folder: Path) -> str:
    """The connection string of the database that belongs to a test's folder."""
    return shared_server().database(f"t{zlib.crc32(str(folder).encode()):x}")

"""A PostgreSQL server of the system, with the settings that it is installed with, on loopback.

Tests of one function use the server of the fixture `server`, which starts faster. This one is for
what depends on the version and the settings of a real server: the limit of 100 connections,
passwords, restarts, and how many claims it can take in a second.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

PASSWORD = "only for tests"
LONGEST = 120  # seconds for a server to start or to stop


def find_programs() -> Path | None:
    """The folder of the server's programs, or nothing if PostgreSQL is not installed."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=_version, reverse=True)
    found = shutil.which("initdb")
    places = [*debian, *([Path(found)] if found else [])]
    return places[0].parent if places else None


def _version(path: Path) -> float:
    return float(path.parents[1].name)


class Postgres:
    """A server with an empty data folder and one user, `harness`, who has a password.

    Attributes:
        port: on 127.0.0.1.
    """

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder = programs, folder
        self.data = folder / "data"
        # The server refuses to run as root. Debian's package has made a user for it.
        self.owner = "postgres" if os.getuid() == 0 else None
        if self.owner:
            shutil.chown(folder, self.owner)
        secret = folder / "password"
        secret.write_text(PASSWORD)
        if self.owner:
            shutil.chown(secret, self.owner)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        options = ["--auth=scram-sha-256", "--username=harness", f"--pwfile={secret}"]
        self._run("initdb", f"--pgdata={self.data}", "--encoding=UTF8", *options)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> None:
        command = [self.programs / "postgres", "-D", self.data, "-p", str(self.port)]
        address = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen([*command, *address], stderr=log, **self._user)
        if wait:
            host = ["--host=127.0.0.1", f"--port={self.port}", "--dbname=postgres"]
            while subprocess.run([self.programs / "pg_isready", "--quiet", *host]).returncode:
                assert self.process.poll() is None, (self.folder / "log").read_text()

    def stop(self) -> None:
        """End all connections and the server, as `systemctl restart postgresql` does."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(LONGEST)
            self.process = None

    def url(
        self, database: str = "postgres", password: str = PASSWORD, user: str = "harness"
    ) -> str:
        who = f"{user}:{password.replace(' ', '%20')}" if password else user
        return f"postgresql+psycopg://{who}@127.0.0.1:{self.port}/{database}"

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        at = {"host": "127.0.0.1", "port": self.port, "user": "harness", "password": PASSWORD}
        with psycopg.connect(dbname="postgres", autocommit=True, **at) as connection:
            answer = connection.execute(query)  # type: ignore[arg-type]
            return answer.fetchall() if answer.description else []

    def connections(self) -> int:
        """Number of open connections to databases, without the one that asks."""
        ((count,),) = self.ask(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return int(count)

    @property
    def _user(self) -> dict[str, Any]:
        if self.owner is None:
            return {}
        group = pwd.getpwnam(self.owner).pw_gid
        return {"user": self.owner, "group": group, "extra_groups": [], "cwd": self.folder}

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self.programs / program, *arguments], check=True, capture_output=True, **self._user
        )


@contextmanager
def running_postgres(programs: Path) -> Iterator[Postgres]:
    """A server that is stopped, and removed, after the block."""
    # Not in pytest's folders, which another user may not enter.
    with tempfile.TemporaryDirectory(prefix="postgres") as place:
        server = Postgres(programs, Path(place))
        server.start()
        try:
            yield server
        finally:
            server.stop()

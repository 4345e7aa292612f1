"""A password reaches no file, no message and no title of a process, whatever characters it has."""

from __future__ import annotations

import shlex
import string
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
import sqlalchemy
from sqlalchemy import URL, make_url

from harness.cli import main
from harness.config import RunConfig, load_config
from harness.errors import HarnessError
from harness.records.provenance import command_line
from harness.redact import lacks_password, redact, without_secrets
from harness.searching import storage
from harness.searching.loop import search
from harness.searching.storage import URL_VARIABLE, open_storage

PRINTABLE = string.printable


def url_of(user: str, password: str, query: Mapping[str, str] | None = None) -> str:
    made = URL.create(
        "postgresql+psycopg",
        **{"username": user, "password": password, "host": "db.lab", "port": 5433},  # type: ignore[arg-type]
        database="runs",
        query=query or {},
    )
    return made.render_as_string(hide_password=False)


@pytest.mark.parametrize("character", PRINTABLE)
def test_every_character_of_a_password_is_hidden_and_the_rest_is_kept(character: str) -> None:
    user, password = f"us{character}er", f"{character}Z{character}qx{character}"
    hidden = redact(url_of(user, password, {"application_name": "x"}))
    assert "qx" not in hidden and lacks_password(hidden)
    shown = make_url(hidden)
    assert (shown.username, shown.host, shown.port, shown.database) == (
        *(user, "db.lab", 5433, "runs"),
    )
    assert shown.query == {"application_name": "x"}
    assert not lacks_password(url_of(user, password))


@pytest.mark.parametrize("character", PRINTABLE)
def test_a_password_that_was_not_quoted_is_hidden_too(character: str) -> None:
    """As people type it; what cannot be told apart is hidden with it."""
    for user in ("me", f"m{character}e"):
        url = f"postgresql://{user}:{character}Zq{character}qx{character}@db.lab:5433/runs"
        assert "qx" not in redact(url) and "Zq" not in redact(url)


@pytest.mark.parametrize("name", ["password", "passwd", "sslpassword", "pwd", "PASSWORD"])
@pytest.mark.parametrize("character", PRINTABLE)
def test_a_password_behind_the_question_mark_is_hidden(character: str, name: str) -> None:
    url = url_of("me", "", {name: f"{character}Z{character}qx", "sslmode": "require"})
    hidden = redact(url)
    assert "qx" not in hidden and "sslmode=require" in hidden and lacks_password(hidden)


@pytest.mark.parametrize(
    "url",
    [
        *("postgresql://host:5432/db", "postgresql+psycopg://me@host:5432/db", "sqlite:///a/b.db"),
        *("postgresql://host/db?passfile=/home/me/.pgpass", "postgresql:///db?host=/tmp", "a: b"),
        *("mysql+pymysql://me@[::1]:3306/db", "https://sqlalche.me/e/20/e3q8", "ms", ""),
    ],
)
def test_what_has_no_password_stays_as_it_is(url: str) -> None:
    assert redact(url) == url and not lacks_password(url)


def test_arguments_are_hidden_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A space or an & in a password used to end it."""
    for password in ("two words", "a&b", "quo'te", "semi;colon", "x=y", "tab\there"):
        url = f"postgresql://me:{password}@db.lab:5433/runs"
        for given in (["--storage", url], [f"--storage={url}"], ["--set", f"storage={url}"]):
            monkeypatch.setattr("sys.argv", ["harness", "search", *given, "--trials", "3"])
            said = command_line()
            assert said.endswith("postgresql://me:***@db.lab:5433/runs' --trials 3")
            assert not any(part in said for part in (password, *password.split()[1:]))


def test_what_a_database_says_is_shown_without_its_password() -> None:
    url = url_of("me", "s3cr3t&pass")
    said = 'failed: "s3cr3t&pass" or "s3cr3t%26pass" of postgresql://me:s3cr3t%26pass@db.lab/runs'
    assert "s3cr3t" not in without_secrets(said, url)
    assert without_secrets("an error of me", url_of("me", "e")) == "an error of me"


def test_a_message_about_a_database_that_is_not_there_has_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "PATIENCE", ())
    for password in ("s3cr&t w/ord", "p@ss:w0rd"):
        url = f"postgresql+psycopg://me:{quote(password, safe='')}@127.0.0.1:1/runs"
        with pytest.raises(HarnessError) as told:
            open_storage(url, tmp_path, "study", 30)
        assert not any(form in str(told.value) for form in (password, quote(password), "s3cr"))


# All of them in a row, as a name forwards and as a password backwards: so a name gives none away.
NAME = "".join(c for c in PRINTABLE if c.isprintable())
SECRET = NAME[::-1]


@pytest.mark.slow
def test_a_whole_search_and_test_on_postgresql_write_the_password_nowhere(
    server: Any,
    postgres: str,
    folder_config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Config, records, ledger, tables, logs and titles of workers; as a user of that name."""
    user = f"u{NAME}"[:63]  # as long as PostgreSQL takes it
    with sqlalchemy.create_engine(postgres).begin() as connection:
        quoted = '"' + user.replace('"', '""').replace("%", "%%") + '"'
        secret = "'" + SECRET.replace("'", "''").replace("%", "%%") + "'"
        connection.exec_driver_sql(f"CREATE ROLE {quoted} SUPERUSER LOGIN PASSWORD {secret}")
    url = make_url(postgres).set(username=user, password=SECRET)
    full = url.render_as_string(hide_password=False)
    monkeypatch.setattr("sys.argv", ["harness", "search", "--storage", full])
    config = folder_config.updated({"storage": full, "trials": 4, "workers": 2})
    titles: set[bytes] = set()
    watching = threading.Event()

    def watch() -> None:
        while not watching.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    titles.add(path.read_bytes())
                except OSError:
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        search([config])
    finally:
        watching.set()
        watcher.join()
    (study,) = Path(config.runs_dir).glob("*/*/proxyanchor")
    assert lacks_password(load_config(study / "config.yaml")["storage"])
    monkeypatch.setenv(URL_VARIABLE, full)  # as eval must be told
    where = ["--runs-dir", config.runs_dir, "--results-dir", config.results_dir]
    more = ["--reproductions", "1", "--workers", "1", "--cache-dir", config.cache_dir]
    assert main(["eval", *where, *more]) == 0
    assert main(["show", *where]) == 0
    said = capfd.readouterr()
    parts = [SECRET, *(SECRET[start : start + 9] for start in range(0, len(SECRET) - 8, 9))]
    forms = {form(part) for part in parts for form in (str, quote, quote_plus, shlex.quote)}
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(written) > 30 and any(b"multiprocessing" in title for title in titles)
    for form in forms:
        assert form not in said.out + said.err
        assert [path for path, content in written.items() if form.encode() in content] == []
        assert not any(form.encode() in title for title in titles)

"""The dashboard is for looking: from this machine, by its own address, and nothing is changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import optuna
import pytest

from harness.cli.dashboard import Guard, is_loopback

PORT = 8080


def ask(guard: Guard, method: str = "GET", host: str = "127.0.0.1:8080", **headers: str) -> str:
    """The status of the answer to a request."""
    answered: list[str] = []
    environ: dict[str, Any] = {
        **{"REQUEST_METHOD": method, "PATH_INFO": "/api/studies/0", "SERVER_PORT": str(PORT)},
        **{"SERVER_NAME": "127.0.0.1", "wsgi.url_scheme": "http", "HTTP_HOST": host},
        **{f"HTTP_{name.upper()}": value for name, value in headers.items()},
    }

    def start(status: str, headers: Any, error: Any = None) -> None:
        answered.append(status.split()[0])

    list(guard(environ, start))
    return answered[0]


def answers(environ: dict[str, Any], start: Callable[..., None]) -> Iterable[bytes]:
    start("200 OK", [])
    return [b"here"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "X"])
def test_nothing_can_be_changed_unless_it_is_allowed(method: str) -> None:
    assert ask(Guard(answers, "127.0.0.1", PORT, write=False), method) == "403"
    assert ask(Guard(answers, "127.0.0.1", PORT, write=True), method) == "200"


def test_looking_is_allowed() -> None:
    guard = Guard(answers, "127.0.0.1", PORT, write=False)
    assert [ask(guard, method) for method in ("GET", "HEAD")] == ["200", "200"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("127.0.0.1:8080", "200"), ("localhost:8080", "200"), ("[::1]:8080", "200")),
        *(("LOCALHOST:8080", "200"), ("127.0.0.1", "403"), ("127.0.0.1:8081", "403")),
        *(("evil.example:8080", "403"), ("127.0.0.1.evil.example:8080", "403"), ("", "403")),
        *(("user@127.0.0.1:8080", "200"), ("127.0.0.1:8080.evil:8080", "403"), ("[:8080", "403")),
    ],
)
@pytest.mark.parametrize("write", [True, False])
def test_only_its_own_address_reaches_it(host: str, status: str, write: bool) -> None:
    """A name that an attacker lets stand for 127.0.0.1 does not."""
    assert ask(Guard(answers, "127.0.0.1", PORT, write), host=host) == status


def test_another_page_in_the_same_browser_changes_nothing() -> None:
    guard = Guard(answers, "127.0.0.1", PORT, write=True)
    assert ask(guard, "DELETE", origin="http://evil.example") == "403"
    assert ask(guard, "DELETE", origin="null") == "403"
    assert ask(guard, "DELETE", origin="http://127.0.0.1:8080") == "200"
    assert ask(guard, "GET", origin="http://evil.example") == "200"  # which cannot read the answer


def test_all_addresses_of_the_machine_means_those_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    monkeypatch.setattr("socket.getfqdn", lambda: "node7.lab")
    monkeypatch.setattr(sys.modules[Guard.__module__], "_addresses", lambda: ["10.0.0.7"])
    guard = Guard(answers, "0.0.0.0", PORT, write=False)
    for host in ("10.0.0.7:8080", "node7:8080", "node7.lab:8080", "localhost:8080"):
        assert ask(guard, host=host) == "200"
    assert ask(guard, host="evil.example:8080") == "403"


def test_which_addresses_are_of_this_machine_alone() -> None:
    assert is_loopback("127.0.0.1") and is_loopback("localhost") and is_loopback("[::1]")
    assert not is_loopback("0.0.0.0")


def test_a_study_cannot_be_deleted_through_it(tmp_path: Path) -> None:
    """Anybody who reached it could, with any Host header."""
    optuna_dashboard = pytest.importorskip("optuna_dashboard")
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage, study_name="kept")
    app = optuna_dashboard.wsgi(storage)
    guard = Guard(app, "127.0.0.1", PORT, write=False)
    assert ask(guard, "DELETE") == "403"
    assert [one.study_name for one in storage.get_all_studies()] == ["kept"]
    assert ask(guard) == "200"
    allowed = Guard(app, "127.0.0.1", PORT, write=True)
    assert study.study_name == "kept" and ask(allowed, "DELETE") == "204"
    assert storage.get_all_studies() == []

"""`harness dashboard`: optuna-dashboard on the storage of a search."""

from __future__ import annotations

import ipaddress
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import Annotated, Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import typer

from harness.cli.display import say
from harness.cli.options import Given, takes_config
from harness.cli.show import asked_for
from harness.errors import HarnessError

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


@takes_config("dashboard")
def dashboard(
    given: Given,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8080,
    write: Annotated[
        bool, typer.Option("--write", help="Allow visitors to change and delete studies.")
    ] = False,
) -> None:
    """Show a search in the browser, also while it runs. Read-only unless --write is given.

    $ harness dashboard proxyanchor --dataset glyphs
    """
    try:
        from optuna_dashboard import wsgi
    except ImportError:
        raise HarnessError(
            "optuna-dashboard is not installed; pip install 'metric-harness[dashboard]'"
        ) from None
    found = asked_for(given)
    # A database shows all of its studies; a journal holds but one.
    places = {one.config.storage or str(one.folder): one for one in found}
    if len(places) > 1:
        listed = "".join(f"\n  {one.folder}" for one in places.values())
        raise HarnessError(f"which of these? Name one:{listed}")
    opened = found[0].storage(reads_only=not write)
    server = _listening(host, port)
    server.set_app(Guard(wsgi(opened.optuna), host, server.server_port, write))
    changes = "changes are allowed" if write else "read-only"
    say(
        f"http://{host}:{server.server_port}/ shows {opened.place} ({changes}); Ctrl-C ends it",
        flush=True,
    )
    if not is_loopback(host):
        say("warning: whoever reaches this machine can see it", file=sys.stderr, flush=True)
    # In a thread of its own: a Ctrl-C that falls into an answer is lost on the server.
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    with server:  # which lets go of the port
        thread.start()
        thread.join()


class Guard:
    """Lets through only who calls the dashboard by its address, and only to look.

    A page of somebody else's in the same browser can send requests here, or make its own name
    stand for this address; neither knows the address itself.

    Args:
        app: behind it.
        host: that it listens on.
        write: whether changes are allowed.
    """

    def __init__(self, app: Application, host: str, port: int, write: bool) -> None:
        self.app, self.port, self.write = app, port, write
        self.names = {host.strip("[]").lower()}
        if is_loopback(host):
            self.names |= {"localhost", "127.0.0.1", "::1"}
        elif ipaddress.ip_address(_number_of(host)).is_unspecified:  # all addresses of the machine
            self.names |= {"localhost", socket.gethostname().lower(), socket.getfqdn().lower()}
            self.names |= set(map(str, _addresses()))

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        reason = self._refused(environ)
        if not reason:
            return self.app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{reason}\n".encode()]

    def _refused(self, environ: Mapping[str, Any]) -> str:
        if not self._is_ours(environ.get("HTTP_HOST", "")):
            return "this dashboard is reached by the address that it was started with"
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return ""
        if not self.write:
            return "this dashboard is read-only; harness dashboard --write allows changes"
        origin = environ.get("HTTP_ORIGIN")
        if origin is not None and not self._is_ours(origin.partition("://")[2]):
            return "another page may not change anything here"
        return ""

    def _is_ours(self, address: str) -> bool:
        try:
            parts = urlsplit(f"//{address}")
            return parts.hostname in self.names and (parts.port or 80) == self.port
        except ValueError:
            return False


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches an address."""
    return ipaddress.ip_address(_number_of(host)).is_loopback


def _number_of(host: str) -> str:
    return str(socket.getaddrinfo(host.strip("[]"), None)[0][4][0]).partition("%")[0]


def _addresses() -> list[str]:
    """Of this machine, as far as its name leads to them."""
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)]
    except OSError:
        return []


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each request: a browser keeps connections open."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """What is asked for is not worth a line."""


def _listening(host: str, port: int) -> _Server:
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        server = type("_Server", (_Server,), {"address_family": found[0]})
        return server(found[4][:2], _Quiet)
    except (OSError, OverflowError, UnicodeError) as error:  # the last of a name that is none
        reason = getattr(error, "strerror", None) or error
        raise HarnessError(
            f"cannot listen on {host}:{port} ({reason}); give another --port or --host"
        ) from None

"""`harness dashboard`: optuna-dashboard on the storage of a search."""

from __future__ import annotations

import socket
import threading
from typing import Annotated

import typer

from harness.cli import options
from harness.cli.options import read_values
from harness.cli.show import Studies, nothing_found
from harness.errors import HarnessError


def dashboard(
    studies: Studies = None,
    loss: options.Loss = None,
    dataset: options.Dataset = None,
    protocol: options.Protocol = None,
    trunk: options.Trunk = None,
    storage: options.Storage = None,
    runs_dir: options.RunsDir = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8080,
) -> None:
    """Look at a search in the browser, also while it runs.

    $ harness dashboard proxyanchor --dataset glyphs
    """
    values = read_values(None, None, locals())
    try:
        from optuna_dashboard import run_server
    except ImportError:
        raise HarnessError(
            "optuna-dashboard is not installed; pip install 'metric-harness[dashboard]'"
        ) from None
    from harness.searching.found import find_searches

    wanted = [*(loss or []), *(studies or [])]
    found = list(find_searches(wanted, values))
    if not found:
        raise HarnessError(nothing_found(wanted))
    # A database shows all of its studies; a journal holds but one.
    places = {one.config.storage or str(one.folder): one for one in found}
    if len(places) > 1:
        listed = "".join(f"\n  {one.folder}" for one in places.values())
        raise HarnessError(f"which of these? Name one:{listed}")
    opened = found[0].storage()
    _check_free(host, port)
    print(f"http://{host}:{port}/ shows {opened.place}; Ctrl-C ends it", flush=True)
    # In a thread of its own: a Ctrl-C that falls into an answer is lost on the server.
    server = threading.Thread(target=run_server, args=(opened.optuna, host, port), daemon=True)
    server.start()
    server.join()


def _check_free(host: str, port: int) -> None:
    try:
        with socket.create_server((host, port)):
            pass
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HarnessError(
            f"cannot listen on {host}:{port} ({reason}); give another --port"
        ) from None

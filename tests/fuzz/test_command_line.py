"""Command lines made of what the commands know, what people mistype, and what nobody means."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from socketserver import BaseServer
from typing import Any

import pytest
import typer.main
from conftest import write_images
from ends import cases, run, unchanged
from hypothesis import given
from hypothesis import strategies as st
from made_records import make_record, put
from made_studies import put_study
from mutations import WORDS

from harness.cli import app
from harness.config import RunConfig

# A shell passes no zero bytes, and what is not UTF-8 as Python escapes it.
TEXTS = st.one_of(
    st.sampled_from([word for word in WORDS if "\0" not in word]),
    st.sampled_from(["\udcff", "~", "~/x", "--", "-", "=", "@x", "é", "\n", "*"]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6),
    st.integers().map(str),
)
KNOWN = (
    *(
        "proxyanchor",
        "ccp",
        "triplet",
        "glyphs",
        "cub",
        "mlrc",
        "frozen",
        "classic-drml",
        "convnet",
    ),
    *("glyphnet", "none", "gp", "grid", "paper", "auto", "cpu", "cuda", "on", "mean", "p_at_1"),
    *("scores", "losses", "all", "ms", "nmi", "recall@1,2", "params.margin=1", "x.svg", "x.html"),
    *("mlrc+threads=100000", "mlrc+batch_size=0", "sqlite://", "postgresql://a:b@/c", "10000"),
    *("127.0.0.1", "0.0.0.0", "::1", "0", "65536", "-1"),
    *("params.margin=0.1,0.2", "protocol.norm=none,layer", "full: params.x=1", "results", "runs"),
)


def _commands() -> dict[str, Any]:
    """Words of a command -> its parameters, as the command line itself knows them."""
    group: Any = typer.main.get_command(app)
    found = {}
    for name, command in group.commands.items():
        nested = getattr(command, "commands", None)
        for inner, one in (nested or {"": command}).items():
            found[f"{name} {inner}".strip()] = one.params
    return found


COMMANDS = _commands()


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from(list(COMMANDS)))
    words = name.split()
    params = COMMANDS[name]
    for _ in range(draw(st.integers(0, 4))):
        param = draw(st.sampled_from(params))
        value = draw(st.one_of(st.sampled_from(KNOWN), TEXTS))
        if param.param_type_name == "argument":
            words.append(value)
        elif getattr(param, "is_flag", False):
            words.append(param.opts[-1])
        else:
            words += [param.opts[-1], value]
    if draw(st.integers(0, 9)) == 0:
        words.insert(draw(st.integers(0, len(words))), draw(TEXTS))
    return words


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to work in, with results, and with images of one class: nothing can train on it."""
    root = tmp_path_factory.mktemp("fuzz")
    write_images(root / "pictures", num_classes=1, per_class=2)
    (root / "mine.py").write_text("raise SystemExit(3)\n")
    for method in ("ms", "triplet"):
        put(root / "results", make_record(method))
    config = RunConfig(dataset=f"folder:{root / 'pictures'}", runs_dir=str(root / "runs"))
    put_study(config, "mlrc/folder_pictures-convnet/triplet", reason="none")
    return root


@pytest.fixture
def nobody_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dashboard that ends at once, and asks no name server who somebody is."""
    real = socket.getaddrinfo

    def numbers_alone(host: Any, *more: Any, **options: Any) -> Any:
        return real(host, *more, **{**options, "flags": socket.AI_NUMERICHOST})

    monkeypatch.setattr(BaseServer, "serve_forever", lambda server: None)
    monkeypatch.setattr(socket, "getaddrinfo", numbers_alone)


@cases(0.16)
@given(words=command_lines(), encoding=st.sampled_from(["utf-8", "utf-8", "ascii"]))
def test_a_command_line_ends_with_success_or_a_message(
    words: list[str],
    encoding: str,
    place: Path,
    nobody_calls: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(place / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    params = [one.name for one in COMMANDS.get(" ".join(words[:2]), COMMANDS.get(words[0], []))]
    about_tables = ("compare", "verdict", "plot", "embed", "export", "tables")
    if "dataset" in params and words[0] not in about_tables:
        target = f"folder:{place / 'pictures'}"
        words = words if words[0] == "data" else [*words, "--dataset", target]
    with unchanged(place / "pictures"), unchanged(place / "results", "*"):
        run(words, encoding).check()
    assert os.path.exists(place / "results")

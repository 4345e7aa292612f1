"""The command line: help, lists, and a message instead of a traceback."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import FOLDER
from documents import flags_in
from processes import Command
from telling_loss import SAYS, write_telling

from harness import registry
from harness.cli import app, display, main
from harness.cli.options import read_values
from harness.config import DATA, PANELS, WHERE, keys
from harness.system.progress import Event, TrialEnded, Validated
from harness.training.loss_check import BATCHES


def commands_of(group: Any, path: str = "") -> dict[str, Any]:
    """Every command, those of groups by their full name."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        more = hasattr(command, "commands")
        found |= commands_of(command, f"{path}{name} ") if more else {f"{path}{name}": command}
    return found


COMMANDS = commands_of(typer.main.get_command(app))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search"], "which loss? Give --loss NAME"),
        (["search", "--loss", "contrastve"], "Did you mean 'contrastive'"),
        (["search", "--loss", "ms", "--dataset", "glyfs"], "Did you mean 'glyphs'"),
        (["search", "--loss", "ms", "--protocol", "mlrc+batchsize=1"], "Did you mean 'batch_size'"),
        (["search", "--loss", "ms", "--protocol", "mlrc+metric=map"], "Did you mean 'map_at_r'"),
        (["search", "--loss", "ms", "--select", "best"], "No such option: --select"),
        (["eval", "--select", "best"], "'select' takes mean, mean-se, got 'best'"),
        (["search", "--loss", "ms", "--trunk", "resnet"], "no trunk named 'resnet'"),
        (["search", "--loss", "ms", "--preset", "mine"], "no preset of ms named 'mine'"),
        (
            ["search", "--loss", "ms", "--trials", "-3"],
            "'trials' takes a whole number >= 0, got -3",
        ),
        (["search", "--loss", "ms", "--trials", "x"], "Invalid value for '--trials'"),
        (["search", "--loss", "ms", "--device", "tpu"], "no device named 'tpu'"),
        (["search", "--loss", "ms", "--sampler", "bayes"], "no sampler named 'bayes'"),
        (["search", "--loss", "ms", "--set", "trails=3"], "Did you mean 'trials'"),
        (["search", "--loss", "ms", "--config", "none.yaml"], "cannot read config none.yaml"),
        (["search", "--loss", "ms", "--dataset", "folder"], "--dataset folder:PATH"),
        (["search", "--loss", "ms", "--dataset", "folder:/none"], "no folder at /none"),
        (["search", "--loss", "none.py"], "no file at none.py"),
        (["search", "--colour"], "No such option: --colour"),
        (["serch"], "No such command 'serch'"),
        (["list", "loses"], "Did you mean 'losses'"),
        (["train", "--loss", "ms", "--set", "params.alhpa=1"], "no parameter named 'alhpa'"),
    ],
)
def test_every_user_error_is_a_message_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and message in captured.err
    assert "Traceback" not in captured.err
    assert not (tmp_path / "runs").exists(), "nothing was started"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_help_of_every_command_has_examples_that_parse(name: str) -> None:
    examples = re.findall(r"\$ harness (.+)", COMMANDS[name].help)
    assert examples
    for example in examples:
        assert example.startswith(f"{name} ") or example == name
        flags_in(COMMANDS[name], name, shlex.split(example.removeprefix(name)))


def test_a_config_key_names_commands_that_exist() -> None:
    assert {command for about in keys().values() for command in about.commands} <= set(COMMANDS)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_parameter_has_a_help_text_of_whole_sentences(name: str) -> None:
    for parameter in COMMANDS[name].params:
        assert re.fullmatch(r"[A-Z].*\.", parameter.help, re.DOTALL), parameter.name


def test_help_groups_flags_in_panels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--help"]) == 0
    text = capsys.readouterr().out
    places = [text.index(f" {panel} ─") for panel in PANELS]
    assert places == sorted(places)
    where = text[places[PANELS.index(WHERE)] : places[PANELS.index(DATA)]]
    workers = ["--workers", "--per-gpu", "--stall-minutes", "--memory-limit"]
    assert re.findall(r"^│ (--[\w-]+)", where, re.MULTILINE) == [*workers, "--device", "--storage"]


def test_help_shows_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--help"]) == 0
    assert "Default: glyphs." in capsys.readouterr().out


def test_list_shows_every_loss_with_paper_space_and_presets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["list", "losses", "--verbose"]) == 0
    text = capsys.readouterr().out
    for name, method in registry.items("loss").items():
        assert f"  {name}" in text and method.paper in text
    assert "temperature [0.01, 100] log" in text and "presets: mlrc" in text


def test_list_shows_losses_by_family_in_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "losses"]) == 0
    families: dict[str, list[str]] = {}
    family = ""
    for line in capsys.readouterr().out.splitlines()[1:]:
        if line.startswith("    "):
            families[family].append(line.split()[0])
        else:
            family = line.strip(" :")
            families[family] = []
    listed = [name for names in families.values() for name in names]
    assert sorted(listed) == sorted(registry.names("loss"))
    assert {"contrastive", "triplet", "margin"} <= set(families["Losses on pairs and triplets"])
    assert {"arcface", "proxynca"} <= set(families["Losses with proxies or class weights"])
    assert families[registry.load_method("ccp").paper] == [
        "ccp-c1",
        "ccp-c2",
        "ccp-ms",
        "ccp-triplet",
    ]


def test_list_shows_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for kind in ("dataset", "protocol", "trunk"):
        for name in registry.names(kind):
            assert f"  {name} " in text


def test_train_shows_the_four_folds(
    tmp_path: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    what = ["--dataset", f"folder:{image_folder}", "--protocol", FOLDER, "--trunk", "convnet"]
    where = ["--runs-dir", str(tmp_path / "runs"), "--device", "cpu"]
    margin = ["--set", "params.margin=0.3"]
    command = ["train", "--loss", "ccp-triplet", *what, *where, *margin, "--geometry"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "margin=0.3" in text
    assert [f"fold {fold}: validation map_at_r" in text for fold in (1, 2, 3, 4)] == [True] * 4
    assert text.count("instances 1") == 4 and text.count("covering radius 0.") == 8


def test_a_flag_beats_set_and_set_beats_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("trials: 1\nseed: 1\nworkers: 1\nparams: {a: 1, b: 1}\n")
    values = read_values(path, ["seed=2", "trials=2", "params.b=2"], {"trials": 3, "seed": None})
    assert values == {"trials": 3, "seed": 2, "workers": 1, "params": {"a": 1, "b": 2}}


def test_plain_lines_say_what_a_person_wants_to_know(capsys: pytest.CaptureFixture[str]) -> None:
    def said(event: Event, verbose: bool = False) -> str:
        display.Lines(verbose)(event)
        return capsys.readouterr().err

    place = {"method": "ms", "trial": 3, "trials": 10}
    ended = TrialEnded(**place, seconds=12.0, score=0.25, best=0.3)
    assert said(ended).startswith("ms: trial 3/10, map@r 25.00%, best 30.00%, 12 s, about ")
    failed = TrialEnded(**place, seconds=12.0, reason="the loss became nan")
    assert said(failed) == "ms: trial 3/10 failed: the loss became nan\n"
    step = Validated(method="ms", unit=3, fold=1, step=50, max_steps=400, best=0.1)
    assert said(step) == ""
    assert "fold 1, step 50/400" in said(step, verbose=True)


def test_the_time_left_is_that_of_all_workers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 80.0, 84.0, 160.0])
    monkeypatch.setattr(display.time, "monotonic", lambda: next(clock))
    pace = display.Pace()
    left = [pace.left("ms", number, 10) for number in (1, 2, 3)]
    assert left == ["about 12 min left", "about 6 min left", "about 6 min left"]


def test_seconds_are_spelled_for_people() -> None:
    assert [display.spell_seconds(s) for s in (5, 600, 9000)] == ["5 s", "10 min", "2.5 h"]


def start_search(
    pictures: Path, runs: Path, workers: str, protocol: str = FOLDER, loss: str = "triplet"
) -> Command:
    """A search that does not end by itself."""
    return Command(
        *("search", "--loss", loss, "--device", "cpu", "--runs-dir", str(runs)),
        *("--dataset", f"folder:{pictures}", "--trunk", "convnet", "--protocol", protocol),
        *("--trials", "900", "--sampler", "random", "--workers", workers, "-v"),
        forks_workers=True,
    )


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.slow
def test_ctrl_c_stops_every_process_and_says_how_to_go_on(
    tmp_path: Path, image_folder: Path, workers: str
) -> None:
    process = start_search(image_folder, tmp_path, workers)
    process.read_until("fold 2, step 2/4")
    process.signal(signal.SIGINT)
    _, said = process.finish()
    assert process.exit_code == 130
    assert "stopping at the next validation; Ctrl-C again stops at once" in said
    assert "Repeat the same command to go on" in said and "Traceback" not in said
    # Whatever is not finished has a checkpoint to go on from.
    folds = [path.parent for path in tmp_path.glob("**/folds/*/config.yaml")]
    kept = [(f / "record.json").exists() or (f / "checkpoint.pt").exists() for f in folds]
    assert len(folds) > 1 and all(kept)


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, image_folder: Path) -> None:
    """The next validation would be hours away."""
    telling = write_telling(tmp_path)
    hours = re.sub(r"(max_steps|validate_every)=\d", r"\1=1000000", FOLDER)
    process = start_search(image_folder, tmp_path / "runs", "2", hours, str(telling))
    for _ in range(BATCHES + 1):  # those of the check, before a worker begins
        process.read_until(SAYS)
    process.signal(signal.SIGINT)
    process.read_until("Ctrl-C again stops at once")
    for _ in range(20):  # it goes on as if nothing had happened
        process.read_until(SAYS)
    process.signal(signal.SIGINT)
    _, said = process.finish()
    assert process.exit_code == 130 and "Traceback" not in said

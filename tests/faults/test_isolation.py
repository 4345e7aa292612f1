"""No method can harm another, and none the harness: what a loss does stays in its own process."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import study_of

from harness.config import RunConfig
from harness.errors import HarnessError
from harness.experiment import build_experiment
from harness.records.records import FoldRecord
from harness.searching import loop
from harness.searching.loop import search
from harness.system import process_state, workers
from harness.system.watching import anonymous_memory
from harness.training.trial import train

ALL = os.environ.get("HARNESS_FAULTS") == "every"

LOSS = """
import gc, logging, locale, os, random, signal, sys, threading, time, warnings
import numpy as np
import torch
import torch.nn.functional as F
from optuna.distributions import FloatDistribution
from pytorch_metric_learning.losses import TripletMarginLoss

{at_import}

class Mine(TripletMarginLoss):
    calls = 0

    def forward(self, *arguments, **more):
        value = super().forward(*arguments, **more)
        Mine.calls += 1
        if Mine.calls > 4:  # not while it is checked
            {in_a_step}
        return value

SPACE = {{"margin": FloatDistribution(0, 1)}}
"""

# Every setting of a process that a loss can change, and how: those first that once did harm.
SETTINGS = {
    "default device": "torch.set_default_device('meta')",
    "gradients": "torch.set_grad_enabled(False)",
    "recursion limit": "sys.setrecursionlimit(120)",
    "autocast": "torch.autocast('cpu', dtype=torch.bfloat16).__enter__()",
    "replaced function": "F.normalize = lambda values, *a, **k: values.sign()",
    "oneDNN": "torch.backends.mkldnn.enabled = False",
    "matmul precision": "torch.set_float32_matmul_precision('medium')",
    "default dtype": "torch.set_default_dtype(torch.float64)",
    "inference mode": "torch.inference_mode().__enter__()",
    "deterministic algorithms": "torch.use_deterministic_algorithms(True)",
    "anomaly detection": "torch.autograd.set_detect_anomaly(True)",
    "threads": "torch.set_num_threads(2)",
    "subnormal numbers": "torch.set_flush_denormal(True)",
    "generators": "torch.manual_seed(1); np.random.seed(1); random.seed(1)",
    "replaced method": "torch.Tensor.backward = lambda *a, **k: None",
    "hook of all modules": "torch.nn.modules.module.register_module_forward_hook("
    "lambda module, inputs, output: output * 2)",
    "numpy errors": "np.seterr(all='raise')",
    "warnings": "warnings.simplefilter('error')",
    "working directory": "os.chdir('/')",
    "environment": "os.environ.update(HARNESS_CACHE='/', OMP_NUM_THREADS='9', TMPDIR='/none')",
    "search path": "sys.path[:] = []",
    "modules": "sys.modules['harness.training.fold'] = None",
    "standard streams": "sys.stdout = sys.stderr = None",
    "file mode mask": "os.umask(0o777)",
    "signal handlers": "[signal.signal(n, signal.SIG_IGN) for n in (2, 10, 15, 17)]",
    "timers": "signal.setitimer(signal.ITIMER_REAL, 3600)",
    "threads of its own": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "garbage collection": "gc.disable()",
    "logging": "logging.disable(logging.CRITICAL)",
    "open files": "[os.open('/dev/null', os.O_RDONLY) for _ in range(200)]",
}
SAMPLE = SETTINGS if ALL else dict(list(SETTINGS.items())[:7])


def write_loss(folder: Path, name: str, at_import: str = "", in_a_step: str = "pass") -> str:
    path = folder / f"{name.replace(' ', '_')}.py"
    path.write_text(LOSS.format(at_import=at_import, in_a_step=in_a_step))
    return str(path)


def measured(config: RunConfig) -> dict[str, Any]:
    """Everything that a search measured: of each trial and of each fold."""
    study = study_of(build_experiment(config))
    trials = {str(trial.params): trial.values for trial in study.counted()}
    records = [FoldRecord.read(path) for path in study.folder.glob("folds/*/record.json")]
    folds = {f"{r.params} {r.fold}": (r.history, r.best_step) for r in records}
    return {**trials, **folds}


def read_settings() -> dict[str, Any]:
    """Of this process, but for its streams and the variable that pytest changes."""
    settings = [*process_state.plain_settings(), *process_state.numeric_settings()]
    found = {setting.name: setting.read() for setting in settings if setting.name != "output"}
    found["environment"].pop("PYTEST_CURRENT_TEST", None)
    return found


@pytest.fixture
def in_the_end(own_processes: None) -> Iterator[None]:
    """This process is as it was, whatever losses were imported here."""
    before = read_settings()
    yield
    assert read_settings() == before


@pytest.fixture
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What only a new process puts back: here the losses of a test were imported, too."""
    for owner, name in (
        *((torch.nn.functional, "normalize"), (torch.Tensor, "backward")),
        *((sys, "stdout"), (sys, "stderr")),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    modules, hooks = dict(sys.modules), dict(torch.nn.modules.module._global_forward_hooks)
    with warnings.catch_warnings(), np.errstate(), torch.random.fork_rng():
        yield
    sys.modules.update(modules)
    torch.nn.modules.module._global_forward_hooks.clear()
    torch.nn.modules.module._global_forward_hooks.update(hooks)
    torch.set_flush_denormal(False)
    signal.setitimer(signal.ITIMER_REAL, 0)


def search_beside(
    config: RunConfig, folder: Path, when: str, settings: Mapping[str, str]
) -> tuple[Any, Any]:
    """What a method measures alone, and after a loss for each setting."""
    plain = config.updated({"trials": 1})
    search([plain])
    beside = plain.updated({"runs_dir": str(folder / "beside")})
    losses = [write_loss(folder, name, **{when: code}) for name, code in settings.items()]
    with suppress(HarnessError):  # of a loss that cannot train with what it has set
        search([*(beside.updated({"loss": loss}) for loss in losses), beside])
    return measured(plain), measured(beside)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are searched that their check would refuse, and thereby all of the search."""
    monkeypatch.setattr(loop, "check_loss_file", lambda experiment: None)
    monkeypatch.setattr(loop, "check_method", lambda experiment: None)


@pytest.mark.usefixtures("in_the_end", "unchecked")
def test_no_step_of_one_method_changes_another(folder_config: RunConfig, tmp_path: Path) -> None:
    alone, beside = search_beside(folder_config, tmp_path, "in_a_step", SAMPLE)
    assert beside == alone


@pytest.mark.slow
@pytest.mark.usefixtures("put_back", "in_the_end", "new_processes", "unchecked")
def test_no_import_of_one_method_changes_another(folder_config: RunConfig, tmp_path: Path) -> None:
    # Inference mode, once entered, ends with the process alone: here with that of all tests.
    settings = {name: code for name, code in SAMPLE.items() if name != "inference mode"}
    alone, beside = search_beside(folder_config, tmp_path, "at_import", settings)
    assert beside == alone


@pytest.mark.usefixtures("own_processes")
def test_what_a_loss_file_sets_is_its_own_and_recorded(
    folder_config: RunConfig, tmp_path: Path
) -> None:
    code = "torch.set_float32_matmul_precision('medium'); torch.backends.mkldnn.enabled = False"
    plain = folder_config.updated({"loss": "triplet"})
    mine = plain.updated({"loss": write_loss(tmp_path, "mine", code)})
    made = [train(config, count=1)[1][0].provenance["settings"] for config in (mine, plain)]
    assert (made[0]["float32_matmul_precision"], made[0]["mkldnn_enabled"]) == ("medium", False)
    assert (made[1]["float32_matmul_precision"], made[1]["mkldnn_enabled"]) == ("highest", True)
    assert made[1]["default_device"] == "cpu" and made[1]["default_dtype"] == "float32"
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.slow
@pytest.mark.usefixtures("new_processes")
def test_the_cache_is_filled_by_no_process_that_ran_a_loss_file(
    folder_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features that a loss file could have changed would stay wrong for all methods."""
    frozen = folder_config.updated({"protocol": "frozen+crop=12+resize=16+max_steps=4"})
    # Put back by the test: it is imported here, too.
    code = "torch.nn.ReLU.forward = lambda self, values: values * 0"
    mine = write_loss(tmp_path, "mine", code)
    monkeypatch.setattr(torch.nn.ReLU, "forward", torch.nn.ReLU.forward)
    train(frozen.updated({"loss": mine, "cache_dir": str(tmp_path / "its")}), count=1)
    (its,) = (tmp_path / "its").glob("*/features-*/features.npy")
    train(frozen.updated({"cache_dir": str(tmp_path / "plain")}), count=1)
    (plain,) = (tmp_path / "plain").glob("*/features-*/features.npy")
    assert its.read_bytes() == plain.read_bytes()


@pytest.mark.parametrize("number", [0, 3])
def test_a_loss_that_ends_the_process_when_imported_is_refused(
    folder_config: RunConfig, tmp_path: Path, number: int
) -> None:
    loss = write_loss(tmp_path, "mine", at_import=f"os._exit({number})")
    with pytest.raises(HarnessError, match=rf"mine.py does not import: .*os._exit\({number}\)"):
        search([folder_config.updated({"loss": loss})])


@pytest.mark.usefixtures("in_the_end")
def test_a_loss_that_ends_its_process_fails_its_trial_by_name(
    folder_config: RunConfig, tmp_path: Path
) -> None:
    config = folder_config.updated({"loss": write_loss(tmp_path, "mine", "", "os._exit(0)")})
    with pytest.raises(HarnessError, match=r"no trial of mine@.*: it ended with exit code 0"):
        search([config.updated({"trials": 1})])
    (trial,) = study_of(build_experiment(config)).counted()
    assert "exit code 0, as by os._exit" in trial.user_attrs["reason"]
    with pytest.raises(HarnessError, match=r"mine@.*exit code 0, as by os._exit, 3 times in a row"):
        search([config.updated({"trials": 9})])


@pytest.mark.slow
@pytest.mark.usefixtures("own_processes")
def test_a_worker_that_is_killed_is_named_and_the_next_method_is_searched(
    folder_config: RunConfig, tmp_path: Path
) -> None:
    plain = folder_config.updated({"trials": 1})
    loss = write_loss(tmp_path, "mine", "", "os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(workers.WorkerLost, match=r"worker of mine@\w+ ended with exit code -9"):
        search([plain.updated({"loss": loss}), plain])
    assert len(study_of(build_experiment(plain)).completed()) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("own_processes")
def test_a_loss_that_hangs_fails_its_trial_by_timeout_and_says_where(
    folder_config: RunConfig, tmp_path: Path
) -> None:
    loss = write_loss(tmp_path, "mine", "", "time.sleep(3600)")
    config = folder_config.updated({"loss": loss, "trials": 1, "stall_minutes": 0.1})
    with pytest.raises(HarnessError, match=r"no trial of mine@.*no training step, .*--stall-min"):
        search([config])
    (failure,) = Path(config.runs_dir).glob("*/*/*/folds/*/failure.txt")
    assert "mine.py" in failure.read_text() and "in forward" in failure.read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("own_processes")
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_loss_that_takes_more_memory_than_allowed_fails_its_trial(
    folder_config: RunConfig, tmp_path: Path
) -> None:
    hog = "Mine.kept = b'x' * 1_500_000_000; time.sleep(60)"
    config = folder_config.updated({"loss": write_loss(tmp_path, "mine", "", hog), "trials": 1})
    with pytest.raises(HarnessError, match=r"MiB of memory; --memory-limit is"):
        search([config.updated({"memory_limit": 1.4})])


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_of_mapped_files_is_not_counted(tmp_path: Path) -> None:
    size = 100_000_000
    (tmp_path / "file").write_bytes(b"x" * size)
    before = anonymous_memory(os.getpid())
    with open(tmp_path / "file", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        assert mapped.find(b"y") == -1  # every page is read
        assert anonymous_memory(os.getpid()) - before < size / 10
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as own:
        own.write(b"x" * size)
        assert anonymous_memory(os.getpid()) - before > size / 2


@pytest.mark.slow
@pytest.mark.usefixtures("new_processes")
def test_a_loss_that_changes_the_folder_and_ignores_signals_writes_where_it_should(
    folder_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    step = "os.chdir('/'); signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    values = {"loss": write_loss(tmp_path, "mine", "", step), "runs_dir": "runs", "trials": 1}
    (summary,) = search([folder_config.updated(values)])
    assert (summary.trials, summary.failed) == (1, 0)
    assert len(list(tmp_path.glob("runs/*/*/mine@*/folds/*/record.json"))) == 4
    assert Path.cwd() == tmp_path

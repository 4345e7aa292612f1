"""Settings of a whole process that code of others may change: read, recorded and put back.

A method trains in a process of its own, where what its loss file sets stays set. Everywhere else,
what such code changes is put back as soon as it returns.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

# With this variable, a single worker runs in the process that started it: for tests.
IN_PROCESS = "HARNESS_IN_PROCESS"


@dataclass(frozen=True)
class Setting:
    """One setting of a process.

    Attributes:
        usual: what it is in a new process; None if that depends on the machine.
    """

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], object]
    usual: Any = None

    def read(self) -> Any:
        """Its value; the usual one where torch refuses to say, as between its old and new names."""
        try:
            return self.get()
        except RuntimeError:
            return self.usual

    def change(self, value: Any) -> None:
        """Set it, unless it has that value."""
        if self.read() != value:
            self.put(value)


def numeric_settings() -> list[Setting]:
    """Settings of torch that change numbers, or whether there are any."""
    import torch  # which those that only read records do without

    backends: Any = torch.backends  # whose types leave some of this out
    found = [
        Setting("default_dtype", torch.get_default_dtype, torch.set_default_dtype, torch.float32),
        Setting("default_device", torch.get_default_device, _put_device, torch.device("cpu")),
        Setting("gradients", torch.is_grad_enabled, torch.set_grad_enabled, True),
        Setting(
            "float32_matmul_precision",
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
            "highest",
        ),
        Setting(
            "deterministic_algorithms",
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
            False,
        ),
        Setting("detect_anomaly", torch.is_anomaly_enabled, torch.set_anomaly_enabled, False),
        Setting("threads", torch.get_num_threads, torch.set_num_threads),
        _flag(backends.mkldnn, "mkldnn", "enabled", True),
        _flag(backends.cudnn, "cudnn", "enabled", True),
        _flag(backends.cudnn, "cudnn", "benchmark", False),
        _flag(backends.cudnn, "cudnn", "deterministic", False),
        _flag(backends.cudnn, "cudnn", "allow_tf32", True),
    ]
    found += _autocast(torch, "cpu", torch.bfloat16) + _autocast(torch, "cuda", torch.float16)
    return found


def _autocast(torch: Any, device: str, dtype: Any) -> list[Setting]:
    return [
        Setting(
            f"autocast_{device}",
            lambda: torch.is_autocast_enabled(device),
            lambda on: torch.set_autocast_enabled(device, on),
            False,
        ),
        Setting(
            f"autocast_dtype_{device}",
            lambda: torch.get_autocast_dtype(device),
            lambda dtype: torch.set_autocast_dtype(device, dtype),
            dtype,
        ),
    ]


def _flag(owner: Any, prefix: str, name: str, usual: bool) -> Setting:
    return Setting(
        f"{prefix}_{name}",
        lambda: getattr(owner, name),
        lambda value: setattr(owner, name, value),
        usual,
    )


def _put_device(device: Any) -> None:
    import torch

    # A default device that is set, even the CPU, slows every call of torch down.
    torch.set_default_device(None if device == torch.device("cpu") else device)


def plain_settings() -> list[Setting]:
    """Settings of Python and of the system."""
    root = logging.getLogger()
    return [
        Setting("working_directory", os.getcwd, os.chdir),
        Setting("environment", lambda: dict(os.environ), _put_environment),
        Setting("search_path", lambda: list(sys.path), lambda paths: _put_list(sys.path, paths)),
        Setting("recursion_limit", sys.getrecursionlimit, sys.setrecursionlimit),
        Setting("switch_interval", sys.getswitchinterval, sys.setswitchinterval),
        Setting("file_mode_mask", _mask, os.umask),
        Setting("signal_handlers", _handlers, _put_handlers),
        Setting("garbage_collection", gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        Setting("log_level", lambda: root.level, root.setLevel),
        Setting("log_disabled", lambda: root.manager.disable, logging.disable),
        Setting("output", lambda: (sys.stdout, sys.stderr), _put_output),
    ]


def _put_environment(values: dict[str, str]) -> None:
    for name in set(os.environ) - set(values):
        del os.environ[name]
    os.environ.update(values)


def _put_list(target: list[Any], values: list[Any]) -> None:
    target[:] = values


def _mask() -> int:
    mask = os.umask(0o077)  # it can only be read by setting it
    os.umask(mask)
    return mask


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _put_handlers(handlers: dict[int, Any]) -> None:
    if threading.current_thread() is threading.main_thread():  # no other one may
        for number, handler in handlers.items():
            # One that was not set by Python cannot be set by it.
            if handler is not None and signal.getsignal(number) is not handler:
                with suppress(OSError, ValueError):
                    signal.signal(number, handler)


def _put_output(streams: tuple[Any, Any]) -> None:
    sys.stdout, sys.stderr = streams


@dataclass
class _Process:
    """What is known of this process.

    Attributes:
        method: whose own process it is; empty if it serves any.
        left: loss file that was run here -> numeric setting -> what it left that at.
        recorded: what records say of the settings, taken once the method was loaded.
    """

    method: str = ""
    left: dict[str, dict[str, Any]] = field(default_factory=dict)
    recorded: dict[str, Any] | None = None


_process = _Process()


def belong_to(method: str) -> None:
    """Make this the own process of a method: what its code sets stays set."""
    _process.method = method
    _process.left = {}  # of the process that this one is a fork of, as in tests


def is_own_process() -> bool:
    """Whether this process trains one method and ends with it."""
    return bool(_process.method)


def wants_own_processes() -> bool:
    """Whether methods get processes of their own; tests do without."""
    return os.environ.get(IN_PROCESS, "0") in ("", "0")


def is_pristine() -> bool:
    """Whether what this process computes depends on nothing that a loss file or a user set."""
    if _process.left:
        return False
    settings = numeric_settings()
    return all(s.usual is None or s.read() == s.usual for s in settings)


def record_settings() -> None:
    """Keep what numbers depend on, for the records of this process."""
    _process.recorded = {s.name: _plain(s.read()) for s in numeric_settings()}


def recorded_settings() -> dict[str, Any] | None:
    """What records say of the settings of this process; None if nothing was trained here."""
    return _process.recorded


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | str) else str(value).removeprefix("torch.")


@contextmanager
def contained(code: str = "", by_owner: bool = True, fresh: bool = False) -> Iterator[None]:
    """Run code of others: what it changes of the process is put back, unless it owns the process.

    It cannot end the process either. Functions of other modules that it replaces stay replaced:
    what many methods share is therefore not computed in such a process; see `is_pristine`.

    Args:
        code: the loss file that is run. It finds torch as it has left it.
        by_owner: whether the code is that of the method whose own process this may be.
        fresh: forget what the loss file left behind before, because it is imported again.
    """
    file = os.path.abspath(code) if code else ""
    if by_owner and is_own_process():
        if file:
            _process.left[file] = {}
        yield
        return
    numeric = numeric_settings()
    settings = [*plain_settings(), *numeric]
    before = [setting.read() for setting in settings]
    left = {} if fresh else _process.left.get(file, {})
    for setting in numeric:
        if setting.name in left:
            setting.change(left[setting.name])
    end, os._exit = os._exit, _refuse_end  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = end
        if file:
            _process.left[file] = {setting.name: setting.read() for setting in numeric}
        for setting, value in zip(settings, before, strict=True):
            setting.change(value)


def _refuse_end(code: int) -> None:
    raise SystemExit(f"it calls os._exit({code}), which would end metric-harness without a word")

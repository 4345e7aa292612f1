"""Work that all methods share, such as caches and rows without training.

It is done in a process that no method has touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from harness.config import RunConfig
from harness.experiment import Benchmark, build_benchmark
from harness.system.process_state import is_pristine, wants_own_processes
from harness.system.progress import Listener, ignore
from harness.system.worker_process import Turn
from harness.system.workers import call_apart, cores

Result = TypeVar("Result")


def run_neutral(
    function: Callable[..., Result],
    benchmark: Benchmark,
    *arguments: Any,
    listener: Listener = ignore,
    apart: bool = False,
) -> Result:
    """What `function(benchmark, *arguments, listener)` returns, whatever was run in this process.

    Args:
        function: of a module; it may be given the benchmark of another process.
        arguments: such as can be sent.
        apart: in another process even if nothing foreign was run in this one.
    """
    if not wants_own_processes() or (is_pristine() and not apart):
        return function(benchmark, *arguments, listener)
    changes = {"loss": "", "params": {}, "protocol": benchmark.protocol.name}
    config = benchmark.config.absolute().updated(changes)
    turn = Turn(benchmark.dataset_label, (function, config, arguments))
    return call_apart(_call, turn, benchmark.device, cores(), listener, always=True)


def _call(
    job: tuple[Callable[..., Result], RunConfig, tuple[Any, ...]], device: str, listener: Listener
) -> Result:
    function, config, arguments = job
    return function(build_benchmark(config.updated({"device": device})), *arguments, listener)

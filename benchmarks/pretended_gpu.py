"""A GPU that is not there, for tests of what a real one would refuse or wait for.

    with pretended_gpu() as gpu:
        loss(embeddings.to("cuda"), labels.to("cuda")).backward()
    print(gpu.waits)  # where the CPU would have waited for the card, line by line

Python sees `cuda:0`: in `tensor.device`, `device="cuda"`, `torch.cuda`, `map_location`. Values are
real, and lie on the CPU. Below Python the tensors belong to PrivateUse1, the backend that torch
keeps for others, so that tensors which C++ makes by itself are on the device of its inputs.

Refused, as by a card: operands of two devices, `numpy()`. Random numbers of the device come from a
stream of their own. Noted: waits, kernels, and kernels that add up in no fixed order. Not shown:
speed, memory, which dtypes a CUDA kernel knows, and what autocast does, for which there is the CPU.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

CPU = torch.device("cpu")
SHOWN = torch.device("cuda", 0)
BACKEND = "pretended"  # what torch calls the device below Python
GIB = 2**30
aten = torch.ops.aten

# Operations whose result the CPU must know before it can go on, and how often they ask for it.
ASKING = {
    aten._local_scalar_dense: 1,
    aten.equal: 1,
    aten.nonzero: 1,
    aten.masked_select: 1,
    aten._unique: 1,
    aten._unique2: 1,
    aten.unique_dim: 1,
    aten.unique_consecutive: 1,
    aten._linalg_check_errors: 1,
    aten.bincount: 2,  # for the least and the largest value
    aten.multinomial: 2,  # whether the weights are valid, and whether they are all zero
}
COPYING = (aten.copy_, aten.copy, aten._to_copy, aten._foreach_copy_)
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._unsafe_index, aten._index_put_impl_)

# Kernels that add up in the order in which threads arrive, of those that a loss is likely to meet:
# first those that torch replaces where deterministic algorithms are asked for.
REPLACED = (aten.index_add, aten.index_add_, aten.scatter_add, aten.scatter_add_)
UNORDERED = (
    *(*REPLACED, aten.cumsum, aten.histc, aten.index_reduce, aten.scatter_reduce),
    *(aten.max_pool2d_with_indices_backward, aten._adaptive_avg_pool2d_backward),
)


@dataclass(frozen=True)
class CardRequest:
    """Something that a card would have done, and the line that asked for it."""

    operation: str
    line: str


@dataclass
class Gpu:
    """What was asked of the card.

    Attributes:
        waits: where the CPU would have stood still until the card was done.
        unordered: kernels that would have added up in no fixed order.
        kernels: how often each would have been launched.
    """

    waits: list[CardRequest] = field(default_factory=list)
    unordered: list[CardRequest] = field(default_factory=list)
    kernels: Counter[str] = field(default_factory=Counter)
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def wait(self, operation: str, times: int = 1) -> None:
        if times:
            self.waits += [CardRequest(operation, _line())] * times

    @contextmanager
    def random_stream(self) -> Iterator[None]:
        """The CPU's generator stands in for that of the card, and is left as it was."""
        before = torch.get_rng_state()
        torch.set_rng_state(self.generator.get_state())
        try:
            yield
        finally:
            self.generator.set_state(torch.get_rng_state())
            torch.set_rng_state(before)


def _line() -> str:
    """The innermost line of Python that is neither torch's nor ours here."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if "torch" not in path.parts and path.name not in (Path(__file__).name, "contextlib.py"):
            return f"{'/'.join(path.parts[-2:])}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


class GpuTensor(Tensor):
    """A tensor of the card; what it holds lies on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> GpuTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=torch.device(BACKEND, 0),
        )
        made.held = held
        return made

    device = property(lambda self: SHOWN)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self, **unused: Any) -> str:  # type: ignore[override]
        return f"GpuTensor({self.held})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.held.detach().clone().__reduce_ex__(protocol)  # a file holds values alone

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **unused: Any) -> Any:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
            "to host memory first."
        )

    __array__ = numpy  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, *unused: Any) -> Any:
        raise RuntimeError(f"{func}: a tensor of a pretended GPU that is gone")


def _there(value: Any) -> bool:
    """Whether a tensor is, or a device is that of, the pretended card."""
    if isinstance(value, str | torch.device):
        return torch.device(value).type in (BACKEND, SHOWN.type)
    return isinstance(value, GpuTensor)


class _Operations(TorchDispatchMode):
    """Runs what a card would run on what its tensors hold."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        target, operation = kwargs.get("device"), func.overloadpacket
        if not any(map(_there, (*tensors, target))):
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        if operation in COPYING:
            self._note_copy(args, kwargs)
            kwargs.pop("non_blocking", None)
        else:
            self._refuse_two_devices(func, args, tensors)
        self._note(func, args, kwargs)
        if target is not None:
            kwargs["device"] = CPU
        held_args, held_kwargs = tree_map_only(GpuTensor, lambda t: t.held, (args, kwargs))
        drawn = torch.Tag.nondeterministic_seeded in func.tags
        with self.gpu.random_stream() if drawn else nullcontext():
            result = func(*held_args, **held_kwargs)
        if target is not None and not _there(target):
            return result
        made = tree_map_only(Tensor, lambda t: t if _there(t) else GpuTensor(t), result)
        return return_and_correct_aliasing(func, args, kwargs, made)

    def _refuse_two_devices(self, func: Any, args: Any, tensors: list[Tensor]) -> None:
        """Only single numbers, and indices, may be those of the CPU."""
        indices = list(args[1]) if func.overloadpacket in INDEXING and _there(args[0]) else []
        foreign = [t for t in tensors if not _there(t) and not any(t is i for i in indices)]
        self.gpu.wait("indices from the CPU", sum(i is not None and not _there(i) for i in indices))
        arguments = zip(args, func._schema.arguments, strict=False)
        written = [given for given, wanted in arguments if wanted.is_write]
        targets = [t for t in tree_leaves(written) if isinstance(t, Tensor)]
        if any(t.dim() > 0 or any(t is target for target in targets) for t in foreign):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"cuda:0 and cpu! (when calling {func})"
            )

    def _note_copy(self, args: Any, kwargs: Any) -> None:
        """Copies between the devices wait, unless they go up from pinned memory."""
        into = len(args) > 1 and isinstance(args[1], Tensor | list)
        source = tree_leaves(args[1])[0] if into else args[0]
        up = _there(tree_leaves(args[0])[0]) if into else _there(kwargs.get("device", source))
        if _there(source) == up:
            return
        asynchronous = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
        if not (up and asynchronous and getattr(source, "_pinned", False)):
            self.gpu.wait("copy to the card" if up else "copy to the CPU")

    def _note(self, func: Any, args: Any, kwargs: Any) -> None:
        operation = func.overloadpacket
        name = str(operation)
        self.gpu.wait(name, ASKING.get(operation, 0))
        if operation in INDEXING:
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
            filled = "put" in name and args[2].numel() == 1  # a masked_fill: nobody asks where
            self.gpu.wait(f"{name} by a mask", 0 if filled else len(masks))
        if func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
            self.gpu.wait(name)
        if not _is_view(func):
            self.gpu.kernels[name.removeprefix("aten.")] += 1
        replaced = operation in REPLACED and torch.are_deterministic_algorithms_enabled()
        exact = operation is aten.cumsum and not args[0].is_floating_point()
        if operation in UNORDERED and not replaced and not exact:
            self.gpu.unordered.append(CardRequest(name, _line()))
            if torch.are_deterministic_algorithms_enabled():
                warnings.warn(f"{name} does not have a deterministic implementation", stacklevel=2)


@cache
def _is_view(func: Any) -> bool:
    """Whether nothing is launched: the result is a part of what is given."""
    results = [one.alias_info for one in func._schema.returns]
    return bool(results) and all(info is not None and not info.is_write for info in results)


class _Names(TorchFunctionMode):
    """Passes `cuda` on as the name of the backend."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if getattr(func, "__name__", "") == "__get__":  # of an attribute
            return func(*args)
        if func is Tensor.cuda:
            func, args = Tensor.to, (args[0], SHOWN)
        if func is Tensor.to and len(args) > 1 and isinstance(args[1], str):
            args = (args[0], torch.device(args[1]), *args[2:])
        if isinstance(kwargs.get("device"), str):
            kwargs["device"] = torch.device(kwargs["device"])
        args, kwargs = tree_map_only(torch.device, _below, (args, kwargs))
        if func in (torch.tensor, torch.as_tensor) and _there(kwargs.get("device")):
            place = kwargs.pop("device")  # C++ would copy the values where no mode sees it
            return func(*args, **kwargs).to(place)
        return func(*args, **kwargs)


def _below(device: torch.device) -> torch.device:
    return torch.device(BACKEND, 0) if device.type == SHOWN.type else device


_entered = [False]  # a backend that is registered once stays


class _Module:
    """What torch asks of the module of an accelerator: that of CUDA, as far as it is replaced."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


class NoPretendedGpu(Exception):
    """This torch is too old for a backend that is written in Python."""


@cache
def _register() -> None:
    if not hasattr(backend_registration, "_DummyPrivateUse1Hook"):
        raise NoPretendedGpu("this version of torch has no backends written in Python")
    import torch._dynamo  # noqa: F401  # which torch imports later, and which looks at torch.cuda

    class Hooks(backend_registration._DummyPrivateUse1Hook):
        def is_available(self) -> bool:
            return _entered[0]

    backend_registration._setup_privateuseone_for_python_backend(BACKEND, _Module(), Hooks())


def _pinned(tensor: Tensor, device: Any = None) -> Tensor:
    copy = tensor.clone()
    copy._pinned = True  # type: ignore[attr-defined]
    return copy


def _loaded(load: Callable[..., Any], file: Any, map_location: Any = None, **options: Any) -> Any:
    """torch.load, which puts every tensor of a file on a device where one is named."""
    if map_location is None or callable(map_location) or not _there(map_location):
        return load(file, map_location=map_location, **options)
    state = load(file, map_location=CPU, **options)
    return tree_map_only(Tensor, lambda tensor: tensor.to(map_location), state)


def _replacements(gpu: Gpu, count: int, free: int) -> dict[str, Any]:
    """Of functions of torch.cuda."""

    def set_rng_state(state: Tensor, device: Any = None) -> None:
        if _there(state):
            raise TypeError("RNG state must be a torch.ByteTensor")
        gpu.generator.set_state(state)

    def nothing(*arguments: Any, **options: Any) -> None: ...

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *unused: True,
        "_lazy_init": nothing,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: count,
        "current_device": lambda: 0,
        "set_device": nothing,
        "empty_cache": nothing,
        "get_device_name": lambda device=None: "Pretended GPU",
        "get_device_capability": lambda device=None: (9, 0),
        "mem_get_info": lambda device=None: (free, 80 * GIB),
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": nothing,
        "synchronize": lambda device=None: gpu.wait("synchronize"),
        "get_rng_state": lambda device=None: gpu.generator.get_state(),
        "set_rng_state": set_rng_state,
        "manual_seed": gpu.generator.manual_seed,
        "manual_seed_all": gpu.generator.manual_seed,
    }


@contextmanager
def pretended_gpu(count: int = 1, free: int = 80 * GIB) -> Iterator[Gpu]:
    """Pretend that there are cards, of which this process uses the first.

    Args:
        free: bytes of memory that each says are free.
    """
    _register()
    gpu = Gpu()
    with ExitStack() as stack:
        for name, function in _replacements(gpu, count, free).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, function))
        stack.enter_context(mock.patch.object(Tensor, "pin_memory", _pinned))
        stack.enter_context(mock.patch.object(torch, "load", partial(_loaded, torch.load)))
        # Backward in the thread that asks for it, where the modes are.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(_Names())
        stack.enter_context(_Operations(gpu))
        _entered[0] = True
        stack.callback(_entered.__setitem__, 0, False)
        yield gpu

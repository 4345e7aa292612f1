"""Matrix products in full float32, whatever a process set for speed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

from harness.system.precision import full_float32, multiply_in_float32

CPU = torch.device("cpu")


def set_by_name(precision: str) -> Callable[[], None]:
    return lambda: torch.set_float32_matmul_precision(precision)


def allow_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True


def set_for_cuda() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"


def set_for_the_cpu() -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def set_for_all() -> None:
    torch.backends.fp32_precision = "tf32"


SETTINGS = [
    *(set_by_name("highest"), set_by_name("high"), set_by_name("medium"), allow_tf32),
    *(set_for_cuda, set_for_the_cpu, set_for_all),
]


def precisions() -> tuple[str, str]:
    matmul = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    return matmul[0].fp32_precision, matmul[1].fp32_precision


def old_setting() -> str:
    """What torch's older function says; it raises where the newer settings do not fit it."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "raises"


@pytest.fixture(autouse=True)
def default_precision() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.fp32_precision = "none"
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.backends.mkldnn.matmul.fp32_precision = "none"


@pytest.mark.parametrize("set_precision", SETTINGS)
def test_precision_is_full_inside_and_afterwards_what_it_was(
    set_precision: Callable[[], None],
) -> None:
    set_precision()
    before = precisions(), old_setting()
    with full_float32(CPU):
        assert precisions() == ("ieee", "ieee")
    assert (precisions(), old_setting()) == before


def test_a_setting_for_everything_still_rules_afterwards() -> None:
    torch.backends.fp32_precision = "tf32"
    with full_float32(CPU):
        pass
    assert precisions() == ("tf32", "tf32")
    torch.backends.fp32_precision = "ieee"
    assert precisions() == ("ieee", "ieee")


def test_precision_is_restored_after_an_error() -> None:
    torch.set_float32_matmul_precision("high")
    with pytest.raises(ZeroDivisionError), full_float32(CPU):
        _ = 1 / 0
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize("variable", ["", "0", "1"])
def test_products_are_those_of_full_precision(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", variable)
    first, second = torch.rand(2, 64, 64, generator=torch.Generator().manual_seed(0))
    expected = first.double() @ second.double()
    for set_precision in SETTINGS:
        set_precision()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            product = multiply_in_float32(first, second)
        assert product.dtype == torch.float32
        assert torch.allclose(product.double(), expected, rtol=64 * 2**-24, atol=0)


def test_the_environment_variable_of_torch_changes_nothing_inside() -> None:
    script = (
        "import torch; from harness.system.precision import full_float32\n"
        "assert torch.backends.cuda.matmul.fp32_precision == 'tf32'\n"
        "with full_float32(torch.device('cpu')):\n"
        "    assert torch.backends.cuda.matmul.fp32_precision == 'ieee'\n"
        "assert torch.backends.cuda.matmul.fp32_precision == 'tf32'\n"
    )
    environment = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)

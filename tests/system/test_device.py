"""Which device is taken, and what is said where a card is there that torch cannot use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.pretended_gpu import pretended_gpu
from harness.errors import HarnessError
from harness.system import cards
from harness.system.device import choose_device, explain_device


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Whatever this machine has; returns the folder that stands for /dev."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(cards, "DEVICES", tmp_path)
    monkeypatch.setattr(cards, "DRIVER", tmp_path / "version")
    monkeypatch.delenv(cards.VISIBLE, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "no device named 'gpu'"),
        ("cpu:3", "no device named 'cpu:3'"),
        ("cuda", "device 'cuda' is not available here: there is no GPU"),
        ("mps", "device 'mps' cannot be used: Apple's MPS has no float64"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused(name: str, message: str, no_gpu: Path) -> None:
    with pytest.raises(HarnessError, match=message):
        choose_device(name)


def test_auto_says_what_it_took_and_why(no_gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert explain_device("auto") == (torch.device("cpu"), "there is no GPU")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert "float64" in explain_device("auto")[1]


def test_cards_are_named_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cards.VISIBLE, raising=False)
    with pretended_gpu(count=2):
        assert explain_device("auto") == (
            torch.device("cuda"),
            "2 cards, the first Pretended GPU",
        )
        assert explain_device("cuda:1")[1] == "Pretended GPU"
        with pytest.raises(HarnessError, match="'cuda:2' does not exist; there are 2"):
            choose_device("cuda:2")


def test_a_card_that_torch_cannot_see_is_never_left_out_in_silence(
    no_gpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (no_gpu / "nvidia0").touch()
    (no_gpu / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02")
    too_old = (
        "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
        "driver by downloading and installing a new version"
    )

    def refuse() -> None:
        raise RuntimeError(too_old)

    monkeypatch.setattr(torch.cuda, "init", refuse)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    for name in ("auto", "cuda"):
        with pytest.raises(HarnessError) as told:
            choose_device(name)
        for part in ("CUDA 13.2", "470.57.02", "is too old", "newer driver", "--device cpu"):
            assert part in str(told.value)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(HarnessError, match="was built without CUDA; install one with it"):
        choose_device("auto")
    assert choose_device("cpu").type == "cpu"
    monkeypatch.setenv(cards.VISIBLE, "")
    assert explain_device("auto") == (
        torch.device("cpu"),
        "CUDA_VISIBLE_DEVICES hides the GPUs",
    )


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((8, 6), ["sm_80", "sm_90"], True),  # a binary runs on later cards of its generation
        ((6, 1), ["sm_75", "sm_80"], False),
        ((8, 0), ["sm_86"], False),
        ((10, 3), ["sm_90", "sm_100"], True),
        ((12, 0), ["sm_90", "compute_90"], True),  # text is compiled for any later one
        ((9, 0), ["sm_90a"], True),
    ],
)
def test_a_card_without_kernels_is_named(
    capability: tuple[int, int],
    built: list[str],
    runs: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(cards.VISIBLE, raising=False)
    with pretended_gpu():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda card: capability)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
        if runs:
            assert choose_device("auto").type == "cuda"
        else:
            number = "".join(map(str, capability))
            with pytest.raises(
                HarnessError, match=rf"Pretended GPU \(sm_{number}\) has no kernels"
            ):
                choose_device("auto")
        monkeypatch.undo()


def test_nvidia_smi_is_asked_about_the_visible_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "$@" > "$0.asked"\necho 8000\necho 5000\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv(cards.VISIBLE, "GPU-a,3")
    assert cards.free_memory() == 5000 * 2**20  # of the fullest
    assert "--id GPU-a,3" in (tmp_path / "nvidia-smi.asked").read_text()

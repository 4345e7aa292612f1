"""What an error of the machine means: memory that was short, or a card that a process lost."""

from __future__ import annotations

import errno

import pytest
import torch

from harness.errors import HarnessError
from harness.system.device_errors import is_broken_device, is_out_of_memory

# Behind every error of CUDA.
ASYNCHRONOUS = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)

OUT_OF_MEMORY = [
    torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 7.79 GiB "
        "of which 10.06 MiB is free."
    ),
    torch.AcceleratorError("CUDA error: out of memory" + ASYNCHRONOUS, 2),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("MPS backend out of memory (MPS allocated: 17.98 GB, other allocations: 1 GB)."),
    RuntimeError(
        "Caught OutOfMemoryError in replica 0 on device 0.\nOriginal Traceback (most recent call "
        "last):\ntorch.OutOfMemoryError: CUDA out of memory."
    ),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR\nYou can try to repro this exception"),
    RuntimeError("CUDNN_BACKEND_OPERATION: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnSgeqrf(`"),
    RuntimeError("CUDA error: CUSPARSE_STATUS_INSUFFICIENT_RESOURCES when calling `cusparseSpMM(`"),
    RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
    RuntimeError("GET was unable to find an engine to execute this computation"),
    RuntimeError("FIND was unable to find an engine to execute this computation"),
    RuntimeError("Unable to find a valid cuDNN algorithm to run convolution"),
    RuntimeError(
        "Error in virtual void* faiss::gpu::StandardGpuResourcesImpl::allocMemory(const "
        "AllocRequest&): Error: 'cudaSuccess == err' failed: alloc fail type TemporaryMemoryBuffer "
        "dev 0 space Device stream 0x55 size 1610612736 bytes (cudaMalloc error out of memory [2])"
    ),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 40000000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    RuntimeError("[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory"),
    RuntimeError("unable to mmap 4096 bytes from file </torch_1>: Cannot allocate memory (12)"),
    RuntimeError(
        "DataLoader worker (pid 71) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory."
    ),
    RuntimeError("DataLoader worker (pid 71) is killed by signal: Killed. "),
    RuntimeError("std::bad_alloc"),
    MemoryError("Unable to allocate 7.28 TiB for an array with shape (1000000, 1000000)"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
]

BROKEN = [
    torch.AcceleratorError(
        "CUDA error: an illegal memory access was encountered" + ASYNCHRONOUS, 700
    ),
    torch.AcceleratorError("CUDA error: device-side assert triggered" + ASYNCHRONOUS, 710),
    RuntimeError("CUDA error: uncorrectable ECC error encountered" + ASYNCHRONOUS),
    RuntimeError("CUDA error: uncorrectable NVLink error detected during the execution"),
    RuntimeError("CUDA error: unspecified launch failure" + ASYNCHRONOUS),
    RuntimeError("CUDA driver error: unspecified launch failure"),
    RuntimeError("CUDA error: the launch timed out and was terminated" + ASYNCHRONOUS),
    RuntimeError("CUDA error: an illegal instruction was encountered" + ASYNCHRONOUS),
    RuntimeError("CUDA error: misaligned address" + ASYNCHRONOUS),
    RuntimeError("CUDA error: operation not supported on global/shared address space"),
    RuntimeError("CUDA error: invalid program counter"),
    RuntimeError("CUDA error: hardware stack error"),
    RuntimeError("CUDA error: unknown error" + ASYNCHRONOUS),
    RuntimeError("CUDA error: no CUDA-capable device is detected"),
    RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    RuntimeError("CUDA error: invalid access of peer GPU memory over nvlink or a hardware error"),
    RuntimeError("Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost."),
    RuntimeError("HIP error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle,`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_MAPPING_ERROR"),
    RuntimeError(
        "CUDA error: the remote procedural call between the MPS server and the MPS client"
    ),
    RuntimeError("CUDA error: MPS client failed to connect to the MPS control daemon"),
]

NEITHER = [
    ValueError("memory_size must be at least the batch; out of memory entries"),
    RuntimeError("Expected all tensors to be on the same device, but found cuda:0 and cpu!"),
    RuntimeError("CUDA error: no kernel image is available for execution on the device"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (32x1024 and 512x128)"),
    RuntimeError("index 7 is out of bounds for dimension 0 with size 5"),
    OSError(errno.ENOSPC, "No space left on device"),
    HarnessError("trunk bninception makes no features of images of 12 px"),
    KeyError("out of memory"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: str(error)[:50])
def test_memory_that_was_short(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert not is_broken_device(error)


@pytest.mark.parametrize("error", BROKEN, ids=lambda error: str(error)[:50])
def test_a_card_that_is_lost_to_its_process(error: Exception) -> None:
    assert is_broken_device(error)
    assert not is_out_of_memory(error)


@pytest.mark.parametrize("error", NEITHER, ids=lambda error: str(error)[:50])
def test_an_error_of_another_kind(error: Exception) -> None:
    assert not is_out_of_memory(error)
    assert not is_broken_device(error)

"""The contracts that our own tests hold, for what you write yourself.

Each check raises AssertionError that says what is wrong:

>>> from harness.testing import check_dataset, check_method, check_protocol
>>> check_method("my_loss.py")
>>> check_dataset("my_images.py", root="a/small/copy")
>>> check_protocol("my_protocol.py")

A GPU that is not there, which refuses and notes what a real one would refuse or wait for:

>>> from harness.testing import pretended_gpu
>>> with pretended_gpu() as gpu:
...     total = torch.ones(3, device="cuda").sum().item()
>>> gpu.waits
[Asked(operation='aten._local_scalar_dense', line='my_loss.py:2')]
"""

from harness.testing.dataset import check_dataset
from harness.testing.gpu import pretended_gpu
from harness.testing.method import check_method
from harness.testing.protocol import check_protocol

__all__ = ["check_dataset", "check_method", "check_protocol", "pretended_gpu"]

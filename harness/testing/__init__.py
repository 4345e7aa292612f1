"""The contracts that our own tests hold, for what you write yourself.

Each check raises AssertionError that says what is wrong:

>>> from harness.testing import check_dataset, check_method, check_protocol, check_trunk
>>> check_method("my_loss.py")
>>> check_dataset("my_images.py", root="a/small/copy")
>>> check_protocol("my_protocol.py")
>>> check_trunk("my_trunk.py")
"""

from harness.testing.dataset import check_dataset
from harness.testing.method import check_method
from harness.testing.protocol import check_protocol
from harness.testing.trunk import check_trunk

__all__ = ["check_dataset", "check_method", "check_protocol", "check_trunk"]

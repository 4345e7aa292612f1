"""The contracts that our own tests hold, for what you write yourself.

Each check raises AssertionError that says what is wrong:

>>> from harness.testing import check_method
>>> check_method("my_loss.py")
"""

from harness.testing.method import check_method

__all__ = ["check_method"]

"""Row operations and losses as C kernels, where the machine has a C compiler.

`status` and `available` say whether they can be used; `rows` and `softmax` call them.
Importing this builds nothing and imports no JAX.
"""

from recsys.native.build import NativeStatus, available, status

__all__ = ["NativeStatus", "available", "status"]

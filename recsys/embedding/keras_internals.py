"""Classes from private modules of Keras that have no public name.

`Functional` is the class of `keras.Model(inputs, outputs)`. To make a subclass functional, Keras
permanently replaces `keras.Model` among its bases by this class, which would break its other
subclasses. So a functional class must derive from it explicitly.

`DataAdapter` is the only kind of input that `fit` doesn't convert. Keras would copy arrays that are
already on the devices if they came from a generator or a `PyDataset`.
"""

from keras.src.models.functional import Functional
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

__all__ = ["DataAdapter", "Functional"]

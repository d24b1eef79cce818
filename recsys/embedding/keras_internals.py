"""What this project takes from private modules of Keras: two classes without a public name.

`Functional` is the class of `keras.Model(inputs, outputs)`. A subclass of `keras.Model`
is made functional by Keras replacing `keras.Model` among its bases by this class, for
good; so a class that is to be functional, beside others that are not, must name it.

`DataAdapter` is the one kind of input that `fit` takes as it is. A generator or a
`PyDataset` of arrays that are on the devices already is converted and copied again.
"""

from keras.src.models.functional import Functional
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

__all__ = ["DataAdapter", "Functional"]

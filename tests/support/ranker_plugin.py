"""A plugin with a ranking model."""

import keras
from keras import ops

import recsys


@recsys.register_model("rows_and_list")
class RowsAndList(recsys.RankingModel):
    """Reads the user's row, the item's, and the item's place in the retriever's list."""

    class Config(recsys.RankingConfig):
        """The options."""

        width: int = 8

    def __init__(self, spec, **kwargs):
        super().__init__(spec, **kwargs)
        self.hidden = keras.layers.Dense(spec.config.width, activation="relu")
        self.out = keras.layers.Dense(len(self.label_names))

    def score(self, features, training=False):
        read = [features[name] for name in ("user_row", "id_row", "retriever")]
        return self.out(self.hidden(ops.concatenate(read, axis=-1)))

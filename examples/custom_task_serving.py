"""The serving side of `custom_task`: a SavedModel that scores pairs of raw ids."""

import numpy as np
import tensorflow as tf

from recsys.savedmodel.inputs import IdTable
from recsys.savedmodel.parity import Expected
from recsys.savedmodel.variables import variables_of, without_rows
from recsys.tasks.model_folder import load_model
from recsys.tasks.serving_side import ServingSide


class Scores(tf.Module):
    """Maps raw ids to rows and features, and these to a probability."""

    def __init__(self, saved):
        super().__init__()
        self.saved, self.tables = saved.model, variables_of(saved.model)
        self.users, self.items = (
            IdTable(side.own_ids.drop_null(), np.flatnonzero(side.has_id()))
            for side in (saved.users, saved.items)
        )
        bags = (*saved.inputs.user_features, *saved.inputs.catalogue.features)
        self.bags = {bag.name: tf.constant(np.asarray(bag.bags)) for bag in bags}
        self.of_users = {bag.name for bag in saved.inputs.user_features}

    def score(self, user_id, item_id):
        rows = {"user_row": self.users.lookup(user_id), "id_row": self.items.lookup(item_id)}
        for name, bag in self.bags.items():
            side = "user_row" if name in self.of_users else "id_row"
            rows[name] = tf.gather(bag, rows[side])
        logit = self.saved(rows)["logit"]
        return {"score": tf.sigmoid(logit)}

    def signatures(self):
        texts = {name: tf.TensorSpec([None], tf.string, name) for name in ("user_id", "item_id")}
        return {"score": tf.function(self.score).get_concrete_function(**texts)}


class Serving(ServingSide):
    """Gives the export its module, and the trainer's scores for the parity check."""

    answers = "scores"

    def __init__(self, stage, sources):
        super().__init__(stage, sources)
        self.saved = load_model(sources.model, without_rows)

    def module(self):
        return Scores(self.saved)

    def reference(self):
        probe = np.load(self.sources.model / "pairs.npz")
        ids = {
            "user_id": self.saved.users.ids_of_rows.take(probe["user_row"]).to_pylist(),
            "item_id": self.saved.items.ids_of_rows.take(probe["item_row"]).to_pylist(),
        }
        inputs = {name: np.array(x, object) for name, x in ids.items()}
        return Expected({"score": inputs}, {"score": {"score": probe["score"]}})

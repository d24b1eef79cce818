"""The serving bundle: exported, checked for parity with the trainer, and published.

exporting         `recsys.export`: starts the stage from Python
export            the stage: from a model folder to a bundle
graph             the signatures of its SavedModel, and what is stored of users and items
candidates        the best k inside the graph
raw_features      raw columns to token rows inside the graph
id_table          ids to rows inside the graph, and the users with their histories
variables         the variables of a SavedModel, written slice by slice
row_slices        rows of large arrays, read slice by slice
quantization      item embeddings in fewer bits
signatures        what the signatures take and answer
parity            what a SavedModel must do before it becomes a bundle
parity_process    the process of that check, with TensorFlow alone
reference         the trainer's results that it compares with
item_table        ids, titles and features of the items
model_card        MODEL_CARD.md
warmup            TensorFlow Serving's warm-up requests
bundle            the bundle on disk: its manifest and its check
publishing        the published versions of a serving root: publish and roll back
"""

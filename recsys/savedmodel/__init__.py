"""Parts of SavedModels of any task; most need TensorFlow.

signatures types of inputs, and the texts that signatures read loading loads a SavedModel, and calls
its signatures variables variables, written and loaded slice by slice row_slices rows of large
arrays, read slice by slice id_table ids to rows inside the graph raw_features raw columns to token
rows inside the graph tables embedding tables of a Keras model parity comparison with the trainer's
results warmup TensorFlow Serving's warm-up requests
"""

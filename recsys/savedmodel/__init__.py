"""Parts of SavedModels that know no task; most need TensorFlow.

signatures        inputs of signatures, calls of a loaded SavedModel, warm-up requests
inputs            ids and raw columns to rows inside the graph
variables         variables, written and loaded slice by slice; tables of a Keras model
row_slices        rows of large arrays, read slice by slice
parity            comparison with the trainer's results
"""

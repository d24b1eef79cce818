"""The layer alone on an accelerator, which `benchmarks.gpu_layer` measures, ours and torch's.

One table of `rows` × `dim` float32 holds `features` features, each in rows of its own; a
step looks up one id a feature for each of `batch` examples, Zipf(1.05), and updates the
rows with given gradients. Every process also measures what its device copies.
"""

"""Removes users from what runs have written: `recsys forget` (docs/forget.md).

files          texts, JSON, reports, records and logs; atomic changes of a folder
model_folder   vocabularies and model folders: the rows are freed and overwritten
served         bundles, by TensorFlow, and the versions of a serving folder

ML Metadata and TFX's artifacts are changed by `pipelines.forget`.
"""

"""Removes users from what runs have written: `recsys forget` (docs/forget.md).

names          occurrences of ids in texts and JSON, and their removal
model_folder   vocabularies and model folders: the rows are freed and overwritten
served         the versions of a serving folder
bundles        one bundle, by TensorFlow
files          reports, records and logs; atomic changes of a folder

ML Metadata and TFX's artifacts are changed by `pipelines.forget`.
"""

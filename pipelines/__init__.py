"""The pipeline, and the runner that runs it on this machine."""

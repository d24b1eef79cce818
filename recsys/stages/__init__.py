"""The stages of a run as programs, each in a process of its own."""

"""The arguments of Beam: which runner runs a pipeline on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
_LOCAL_NAMES = {"direct", "switchingdirect", "testdirect", "fnapi"}


def with_local_runner(args: Sequence[str]) -> list[str]:
    """Returns Beam's arguments, ending with `LOCAL_RUNNER` for the DirectRunner or no runner.

    Beam 2.77's DirectRunner tries Prism first: it downloads a program, or takes the file of its
    name in the home folder, and runs it.
    """
    return [*args, f"--runner={LOCAL_RUNNER}"] if is_local(args) else list(args)


def is_local(args: Sequence[str]) -> bool:
    """Whether the arguments mean the runner of this machine, under any of its names."""
    options = PipelineOptions(list(args)).view_as(StandardOptions)
    runner = options.runner or options.DEFAULT_RUNNER
    return runner.rpartition(".")[2].lower().removesuffix("runner") in _LOCAL_NAMES

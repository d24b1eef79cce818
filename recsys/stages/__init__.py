"""The stages of a run as programs, each in a process of its own.

Commands and options that earlier versions had are refused with their replacement. This imports no
config, which `recsys --help` doesn't need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recsys.errors import UsageError

_HOSTS = "Write --coordinator, with a scheduler that starts all again, or launcher: {kind: ray}."
COMMAND_LINE: Mapping[str, str] = {
    "publish-vectors --changed-only": "Publish all items, and upsert them; deletions are listed.",
    "publish-vectors --format": "Vectors are Parquet; docs/vectors.md loads them into engines.",
    "recommend --at": "Write --context COLUMN=TIME with the column of times, such as timestamp=5.",
    "simulate-nights --arms": "Replay again with --set warm_start=null to compare the nights.",
    "simulate-nights --no-arms": "Leave it out: only the runs of the config are replayed.",
    "simulate-nights --broken": "Leave it out: nights are replayed without broken spans.",
    "simulate-nights --seed": "Leave it out: nothing is drawn.",
    "train --host": _HOSTS,
    "train --hosts": _HOSTS,
}
"""Cure by command, `plot`, or by command and option, `train --hosts`."""


def check_command_line(words: Sequence[str]) -> None:
    """Refuses removed commands and options.

    Args:
        words: A command and its arguments.

    Raises:
        UsageError: One of them was removed (R271).
    """
    command = words[0] if words else ""
    options = (f"{command} {word.partition('=')[0]}" for word in words if word.startswith("-"))
    for removed in (command, *options):
        if removed in COMMAND_LINE:
            rule = f"recsys {removed} is no longer there."
            raise UsageError("R271", rule, COMMAND_LINE[removed])

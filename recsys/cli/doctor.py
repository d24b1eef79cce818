"""`recsys doctor`: the checks of this machine as lines or as JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from rich.text import Text

from recsys.cli.terminal import Console
from recsys.doctor import Check, examine

_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


def doctor(config: Path | None, *, as_json: bool) -> int:
    """Prints what the checks find, each when it is done.

    Returns:
        The exit code: 1 if a check fails, else 0.
    """
    console = Console(stderr=as_json)
    checks = []
    for check in examine(config):
        checks.append(check)
        _print_check(console, check)
    is_healthy = all(check.state != "fail" for check in checks)
    if as_json:
        result = {"ok": is_healthy, "checks": [dataclasses.asdict(check) for check in checks]}
        sys.stdout.write(json.dumps(result) + "\n")
    return 0 if is_healthy else 1


def _print_check(console: Console, check: Check) -> None:
    mark, colour = _MARKS[check.state]
    console.print(
        Text.assemble((mark, colour), f" {check.name:<15} {check.message}"), soft_wrap=True
    )
    if check.fix:
        console.print(Text(f"  {'':<15} fix: {check.fix}", "bold"), soft_wrap=True)

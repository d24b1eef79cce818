"""`recsys runs`: what came of each run, the newest first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from recsys.cli.terminal import fitted_console, titled_table
from recsys.config_file import default_config_path, load_config
from recsys.formats import change, change_span, count, duration, figure, is_number, span
from recsys.report.spans import spans_in_words
from recsys.runs.past_summaries import read_summaries

_WIDTH = 130  # Where there is no terminal.
_COLOURS = {"blessed": "green", "refused": "yellow", "failed": "red", "interrupted": "red"}


def runs(config: Path | None, root: Path | None, most: int, *, as_json: bool) -> None:
    """Prints the runs under a root.

    Args:
        config: Config of the runs; the one of the shipped data by default.
        root: Folder of the runs, instead of the config's.
        most: How many, at the most.
        as_json: Print one line of JSON.
    """
    folder = root or Path(load_config(config or default_config_path()).root)
    nights, damaged = read_summaries(folder, most)
    if as_json:
        listed = [{"record": record, "why": why} for record, why in damaged]
        print(json.dumps({"root": str(folder), "runs": nights, "damaged": listed}))
        return
    console = fitted_console(_WIDTH)
    if not nights:
        console.print(Text(f"No run has left a record in {folder}."), soft_wrap=True)
    else:
        console.print(_table(folder, nights))
    for record, why in damaged:
        console.print(Text(f"{record} can't be read: {why}", "yellow"), soft_wrap=True)


def _table(folder: Path, nights: list[dict[str, Any]]) -> Table:
    table = titled_table(f"Runs in {folder}")
    for heading in ("run", "took", "verdict", "metric", "on the last blessed", "rows", "spans"):
        table.add_column(heading)
    several = len({night["name"] for night in nights}) > 1
    for night in nights:
        name = f"\n{night['name']}" if several else ""
        # Text, because what comes from data is no markup.
        table.add_row(
            Text(f"{_when(night)}{name}"),
            Text(duration(night["seconds"])),
            Text(_verdict(night), _COLOURS.get(night["state"], "")),
            Text(_metric(night)),
            Text(_against(night)),
            Text(_rows(night["data"])),
            Text("\n".join(spans_in_words(night["data"]["spans"]))),
        )
    return table


def _when(night: Mapping[str, Any]) -> str:
    started = night["started"]
    return started[:16].replace("T", " ") if started else str(night["run"])


def _verdict(night: Mapping[str, Any]) -> str:
    if night["metrics"] is not None:
        version = f", version {night['version']}" if night["version"] is not None else ""
        return f"{night['state']}{version}\n{'warm' if night['carried'] else 'cold'} start"
    if night["state"] == "failed":
        code = str(night["error"] or "").partition("]")[0].lstrip("[")
        step = f" in {night['step']}" if night["step"] else ""
        return f"failed{step}{f', {code}' if code else ''}"
    if night["state"] in ("running", "interrupted") and night["step"]:
        return f"{night['state']} in {night['step']}"
    return str(night["state"])


def _metric(night: Mapping[str, Any]) -> str:
    name = night["deciding"]
    metric = (night["metrics"] or {}).get(name)
    if not metric:
        return ""
    lines = [f"{name} {figure(metric['value'])}"]
    if metric["interval"]:
        lines.append(span(metric["interval"]))
    return "\n".join(lines)


def _against(night: Mapping[str, Any]) -> str:
    """Returns how far the deciding metric lies from that of the last blessed model."""
    blessed = (night["against"] or {}).get("blessed_model") or {}
    if not is_number(blessed.get("relative")):
        return ""
    ends = f"\n{change_span(blessed['interval'])}" if blessed["interval"] else ""
    return f"{change(blessed['relative'])}{ends}"


def _rows(data: Mapping[str, Any]) -> str:
    if not is_number(data["read"]):
        return ""
    return f"{count(data['read'])}\n{count(data['rejected'])} rejected"

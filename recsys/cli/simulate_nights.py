"""`recsys simulate-nights`: backtest of nightly runs on past data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from recsys.cli.options import ConfigArgument, Json, Out, Sets
from recsys.cli.stages import require_pipeline
from recsys.cli.terminal import Console, titled_table
from recsys.formats import change, duration


def simulate_nights(
    out: Out,
    config: ConfigArgument = None,
    by: Annotated[
        Literal["day", "week", "month"], Option(help="Period of data per night.")
    ] = "month",
    nights: Annotated[
        int | None, Option(min=2, help="Number of nights. Default: half the periods.")
    ] = None,
    window: Annotated[
        int | None, Option(min=1, help="Number of newest spans to read. Default: all.")
    ] = None,
    broken: Annotated[
        int, Option(min=0, help="Number of spans that are broken, and repaired a night later.")
    ] = 0,
    seed: Annotated[int, Option(min=0, help="Random seed for the broken spans.")] = 0,
    arms: Annotated[
        bool, Option("--arms/--no-arms", help="Also evaluate cold and frozen models.")
    ] = True,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Backtest: replay past data night by night, and compare warm, cold and frozen models.

    An interrupted simulation resumes when the same command is run again.
    """
    require_pipeline()
    from recsys.cli.simulation import Options, Simulation
    from recsys.config.load import load_config
    from recsys.runs.backtest_page import summarize

    options = Options(by, nights, window, broken, seed, arms)
    simulation = Simulation(load_config(config, sets or []), out.resolve(), options)
    simulation.run()
    page, journal = simulation.write_page(), simulation.journal
    summary = summarize(journal.nights)
    _show(Console(stderr=as_json), simulation.config.bless.metric, summary, page)
    if as_json:
        files = {"page": str(page), "nights_file": str(journal.file)}
        print(json.dumps({**summary, **files}))


def _show(console: Console, metric: str, summary: dict[str, Any], page: Path) -> None:
    numbers = ("difference", "95 % interval", "nights")
    title = f"{metric} over {summary['nights']} nights"
    table = titled_table(title, "warm against", *numbers, numbers=numbers)
    rows = {
        "cold": "warm_over_cold",
        "cold, in the last quarter": "warm_over_cold_at_the_end",
        "frozen, in the last quarter": "warm_over_frozen_at_the_end",
        "cold, in steps of training": "steps_of_warm_over_cold",
        "cold, in seconds of training": "train_seconds_of_warm_over_cold",
    }
    for text, name in rows.items():
        ratio = summary[name]
        if ratio is not None:
            ends = " … ".join(change(end - 1) for end in ratio["interval"] or ()) or "too few"
            table.add_row(text, change(ratio["ratio"] - 1), ends, str(ratio["nights"]))
    if table.row_count:  # None with --no-arms.
        console.print(table)
    for state, n in summary["states"].items():
        console.print(f"{state}: {n}")
    console.write_line(f"page     {page}")
    console.print(f"seconds  {summary['seconds']}  ({duration(summary['seconds'])})")

"""`recsys simulate-nights`: backtest of nightly runs on past data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from recsys.cli.follow import RunView, follow, new_log
from recsys.cli.options import ConfigArgument, Json, MaybeCount, Out, Sets
from recsys.cli.show import emit
from recsys.cli.stages import RUNNER, require_pipeline
from recsys.cli.terminal import Console
from recsys.formats import change


def simulate_nights(
    out: Out,
    config: ConfigArgument = None,
    by: Literal["day", "week", "month"] = "month",
    nights: Annotated[int | None, Option(min=2)] = None,
    window: MaybeCount = None,
    arms: bool = True,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Backtest: replay past data night by night, and compare warm, cold and frozen models.

    An interrupted simulation resumes when the same command is run again.

    Args:
        by: Period of data per night.
        nights: Number of nights. Default: half the periods.
        window: Number of newest spans to read. Default: all.
        arms: Also evaluate cold and frozen models.
    """
    require_pipeline()
    from recsys.config.load import load_config
    from recsys.runs.backtest import summarize
    from recsys.runs.simulation import Options, Simulation

    def run_pipeline(file: Path) -> dict[str, Any]:
        log = new_log(simulation.config.root_folder)
        return follow([RUNNER, str(file)], log, RunView(Console(quiet=True)))

    options, report = Options(by, nights, window, arms), Console(stderr=True).write_line
    loaded = load_config(config, sets or [])
    simulation = Simulation(loaded, out.resolve(), options, run_pipeline, report)
    simulation.run()
    page, journal = simulation.page, simulation.journal
    summary = summarize(journal.nights)
    people = for_people(simulation.config.bless.metric, summary)
    files = {"page": str(page), "nights_file": str(journal.file)}
    emit({**summary, **files}, as_json=as_json, people={**people, **files}, beside=True)


def for_people(metric: str, summary: dict[str, Any]) -> dict[str, Any]:
    """Returns the summary with a table of the comparisons."""
    names = {
        "cold": "warm_over_cold",
        "cold, in the last quarter": "warm_over_cold_at_the_end",
        "frozen, in the last quarter": "warm_over_frozen_at_the_end",
        "cold, in steps of training": "steps_of_warm_over_cold",
        "cold, in seconds of training": "train_seconds_of_warm_over_cold",
    }
    rows = [
        {
            "warm against": text,
            "change": summary[name]["ratio"] - 1,
            "95 % interval": " … ".join(change(end - 1) for end in summary[name]["interval"] or ())
            or "too few",
            "nights": summary[name]["nights"],
        }
        for text, name in names.items()
        if summary[name] is not None  # Without arms it is.
    ]
    title = f"{metric} over {summary['nights']} nights"
    return {title: rows, **{name: summary[name] for name in ("states", "seconds")}}

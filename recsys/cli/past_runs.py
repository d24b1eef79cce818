"""`recsys runs`, `lineage` and `clean`: past results, origin of a bundle, retention."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from rich.text import Text
from typer import Argument, Exit, Option

from recsys.cli.options import ConfigArgument, ConfigOption, Json, Root, Sets
from recsys.cli.stages import call_pipeline
from recsys.cli.terminal import Console, fitted_console, plain_size, titled_table
from recsys.cli.tune import settings
from recsys.fingerprint import version_text
from recsys.formats import (
    change,
    change_span,
    count,
    counted,
    duration,
    figure,
    is_number,
    moment,
    span,
)

if TYPE_CHECKING:
    from recsys.config import Config

_WIDTH = 130  # Without a terminal.
_COLOURS = {
    "blessed": "green",
    "best": "green",
    "refused": "yellow",
    "failed": "red",
    "interrupted": "red",
}
_DATABASE = "metadata.sqlite"
_SHOWN_FILES = 10
_GONE = "no longer there"


# --- runs


def runs(
    config: ConfigArgument = None,
    root: Root = None,
    most: Annotated[int, Option("-n", min=1, help="Number of runs to list.")] = 20,
    as_json: Json = False,
) -> None:
    """List past runs, newest first: result, metric, data and pushed version."""
    from recsys.config.load import load_config
    from recsys.runs.summary import read_summaries
    from recsys.tuning.study_records import read_records

    folder = root or load_config(config).root_folder
    nights, damaged = read_summaries(folder, most)
    studies = read_records(folder)
    if as_json:
        listed = [{"record": record, "why": why} for record, why in damaged]
        content = {"root": str(folder), "runs": nights, "damaged": listed, "studies": studies}
        print(json.dumps(content))
        return
    console = fitted_console(_WIDTH)
    if nights:
        console.print(_runs_table(folder, nights))
    else:
        console.write_line(f"There are no records of runs in {folder}.")
    for record, why in damaged:
        console.write_line(f"{record} can't be read: {why}", "yellow")
    for study in studies:
        console.print(_trials_table(study, most))


def _trials_table(study: Mapping[str, Any], most: int) -> Table:
    """Returns a table of the newest trials of a study."""
    from recsys.tuning.study_records import shown_state

    title = f"Trials of the study {study['name']}"
    table = titled_table(title, "trial", "duration", "state", study["metric"], "settings")
    for trial in study["trials"][::-1][:most]:
        state = "best" if trial["number"] == study["best"] else shown_state(trial)
        measured = "" if trial["value"] is None else figure(trial["value"])
        cells = [str(trial["number"]), duration(trial["seconds"]), state, measured]
        cells.append(settings(trial["parameters"]))
        row = [Text(cell) for cell in cells]
        row[2].stylize(_COLOURS.get(state, ""))
        table.add_row(*row)
    return table


def _runs_table(folder: Path, nights: list[dict[str, Any]]) -> Table:
    from recsys.report.span_words import spans_in_words

    headings = ["run", "duration", "verdict", "metric", "change", "rows"]
    has_spans = any(spans_in_words(night["data"]["spans"]) for night in nights)
    table = titled_table(f"Runs in {folder}", *headings, *(["spans"] if has_spans else []))
    several = len({night["name"] for night in nights}) > 1
    for night in nights:
        started, data = night["started"], night["data"]
        cells = [
            started[:16].replace("T", " ") if started else str(night["run"]),
            duration(night["seconds"]),
            _verdict(night),
            *_metric_and_change(night),
            f"{count(data['read'])}\n{count(data['rejected'])} rejected"
            if is_number(data["read"])
            else "",
            "\n".join(spans_in_words(data["spans"])),
        ]
        cells[0] += f"\n{night['name']}" if several else ""
        # Text, because data may look like markup.
        row = [Text(cell) for cell in cells]
        row[2].stylize(_COLOURS.get(night["state"], ""))
        table.add_row(*row if has_spans else row[:-1])
    return table


def _verdict(night: Mapping[str, Any]) -> str:
    state = str(night["state"])
    step = f" in {night['step']}" if night["step"] else ""
    if night["metrics"] is not None:
        version = f", version {night['version']}" if night["version"] is not None else ""
        return f"{state}{version}\n{'warm' if night['carried'] else 'cold'} start"
    if state == "failed":
        code = str(night["error"] or "").partition("]")[0].lstrip("[")
        return f"failed{step}{f', {code}' if code else ''}"
    return f"{state}{step}" if state in ("running", "interrupted") else state


def _metric_and_change(night: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the deciding metric and its change from the last blessed model."""
    metric = (night["metrics"] or {}).get(night["deciding"])
    blessed = (night["against"] or {}).get("blessed_model") or {}
    value = apart = ""
    if metric:
        ends = f"\n{span(metric['interval'])}" if metric["interval"] else ""
        value = f"{night['deciding']} {figure(metric['value'])}{ends}"
    if is_number(blessed.get("relative")):
        ends = f"\n{change_span(blessed['interval'])}" if blessed["interval"] else ""
        apart = f"{change(blessed['relative'])}{ends}"
    return value, apart


# --- clean


def clean(
    config: ConfigArgument = None,
    sets: Sets = None,
    apply: Annotated[bool, Option("--apply", help="Remove the files; default: a dry run.")] = False,
    as_json: Json = False,
) -> None:
    """List the files of past runs that `keep` in the config releases; remove them with --apply.

    Files that the next run, a rollback or the served model needs are always kept.
    """
    from recsys.config.load import load_config

    loaded = load_config(config, sets or [])
    root = str(loaded.root_folder)  # Before TFX is imported.
    done = call_pipeline("clean", ["--apply"] if apply else [], loaded)
    if as_json:
        print(json.dumps({"root": root, **done}))
    else:
        _show_cleaning(loaded, done)
    raise Exit(1 if done["failed"] else 0)


def _show_cleaning(config: Config, done: Mapping[str, Any]) -> None:
    """Prints which files are removed and which are kept, with the reasons."""
    console, root = fitted_console(_WIDTH), config.root_folder
    if done["stays"]:
        console.print(_files_table(f"Kept in {root}", root, _grouped(done["stays"])))
    if done["goes"]:
        title = "Removed" if done["applied"] else "Would be removed"
        console.print(_files_table(f"{title} from {root}", root, done["goes"]))
    for file, why in done["failed"]:
        console.write_line(f"{file} could not be removed: {why}", "red")
    things = f"{counted(len(done['goes']), 'entry', 'entries')}, {plain_size(done['freed'])}"
    kept = f"{plain_size(done['kept'])} kept."
    if not done["goes"]:
        hint = " Set `keep` in the config to remove old runs."
        sentence = f"Nothing to remove; {kept}{'' if config.keep.is_set else hint}"
    elif done["applied"]:
        sentence = f"Removed: {things}; {kept}"
    else:
        sentence = f"Dry run: {things} would be removed. Add --apply to remove them."
    console.write_line(sentence, "bold")


def _grouped(things: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the kept files grouped by kind and reason, the largest group first."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for thing in things:
        group = groups.setdefault((thing["kind"], thing["why"]), {**thing, "size": 0, "n": 0})
        group["size"] += thing["size"]
        group["n"] += 1
    return sorted(groups.values(), key=lambda group: -group["size"])


def _files_table(title: str, root: Path, things: Iterable[dict[str, Any]]) -> Table:
    table = titled_table(title, "kind", "size", "path", "reason", numbers=["size"])
    table.columns[1].no_wrap = True
    for thing in things:
        path, more = Path(thing["path"]), thing.get("n", 1) - 1
        where = str(path.relative_to(root)) if root in path.parents else str(path)
        if more:
            where += f" and {more:,} more"
        size = plain_size(thing["size"])
        table.add_row(Text(thing["kind"]), size, Text(where), Text(thing["why"]))
    return table


# --- lineage


def lineage(
    bundle: Annotated[Path, Argument(metavar="BUNDLE", help="Bundle, or pushed version.")],
    config: ConfigOption = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Show the data, code, config, vocabularies and earlier models that a bundle was made from."""
    from recsys.bundles.bundle import manifest_digest, read_manifest

    manifest = read_manifest(bundle)
    metadata, why = _metadata(bundle, config, root)
    keys = ("name", "code", "versions", "config", "counts", "metrics", "lineage")
    origin = {
        "bundle": str(bundle),
        "digest": manifest_digest(bundle),
        **{key: manifest.get(key) for key in keys},
        "metadata": metadata,
        "no_metadata": why,
    }
    if as_json:
        print(json.dumps(origin))
        return
    console = Console()
    lines = list(_lines(origin))
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        console.write_line(Text.assemble((f"{name:<{width}}  ", "bold"), text), hang=width + 2)


def _metadata(
    bundle: Path, config: Path | None, root: Path | None
) -> tuple[dict[str, Any] | None, str | None]:
    """Returns the record in ML Metadata, or the reason why there is none."""
    where = root or next(
        (folder for folder in bundle.resolve().parents if (folder / _DATABASE).is_file()), None
    )
    if config is None and where is None:
        return None, "the bundle is outside the folder of its run; name that with --root DIR"
    if importlib.util.find_spec("tfx") is None:
        return None, "the extra `pipeline` isn't installed"
    words = ["--bundle", str(bundle.resolve())]
    words += ["--config", str(config)] if config else ["--root", str(where)]
    known = call_pipeline("lineage", words)["found"]
    return (known, None) if known else (None, f"{config or where} has no record of this bundle")


def _lines(origin: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    known, counts = origin["lineage"] or {}, origin["counts"] or {}
    source, evaluation = known.get("source") or {}, known.get("evaluation") or {}
    yield "bundle", f"{origin['bundle']}, digest {_short(origin['digest'])}"
    yield "name", str(origin["name"])
    yield from _data(known.get("data") or {})
    yield "code", _short(origin["code"])
    for stage in ("training", "export"):
        yield "commit", f"{stage}: {version_text(source.get(stage))}"
    yield "versions", ", ".join(f"{n} {v}" for n, v in (origin["versions"] or {}).items())
    for name, digest in (known.get("vocabulary") or {}).items():
        yield "vocabulary", f"{name}: {_short(digest)}"
    users = counted(counts.get("users"), "user", "users")
    yield "holds", f"{counted(counts.get('items'), 'item', 'items')}, histories of {users}"
    yield "model", _short(known.get("model"))
    yield "warm start", _base(known.get("base"))
    if evaluation:
        yield "evaluation", str(evaluation.get("sentence"))
    if origin["metadata"] is None:
        yield "steps", f"unknown: {origin['no_metadata']}"
    else:
        yield from _steps(origin["metadata"])


def _data(data: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for what, source in data.items():
        files, counts = source.get("files") or [], source.get("counts") or {}
        more = f" and {len(files) - _SHOWN_FILES} more" if len(files) > _SHOWN_FILES else ""
        rows = f"{count(counts.get('read'))} rows, {count(counts.get('rejected'))} rejected"
        names = ", ".join(files[-_SHOWN_FILES:])
        yield "data", f"{what}: {names}{more}; {rows}; digest {_short(source.get('digest'))}"
        if counts.get("split", "time") != "time":
            yield "", f"split: {counts['split']}"
        elif counts.get("cut") is not None:
            yield "", f"split at {moment(counts['cut'])}"
        spans = source.get("spans") or []
        read = [part["name"] for part in spans if part.get("state") in ("read", "reused")]
        others = [f"; {part['name']} {part['state']}" for part in spans if part["name"] not in read]
        if spans:
            ends = f"{read[0]} … {read[-1]}" if read else "none"
            yield "spans", f"{len(read)} read ({ends}){''.join(others)}"


def _base(base: Mapping[str, Any] | None) -> str:
    if base is None:
        return "none: trained from scratch"
    return (
        f"from the model {_short(base.get('fingerprint'))}, trained on events until"
        f" {moment(base.get('trained_until'))}; {count(base.get('warm_starts'))} warm starts since"
        " it was trained from scratch"
    )


def _steps(metadata: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for step in metadata["steps"]:
        gone = [Path(o["path"]).parent.name for o in step["outputs"] if not o["is_there"]]
        missing = f"; {', '.join(gone)}: {_GONE}" if gone else ""
        digest = f"; files {_short(step['files_digest'])}" if step["files_digest"] else ""
        yield step["step"], f"run {step['run']}; code {_short(step['code'])}{digest}{missing}"
    for place, model in enumerate(metadata["models"]):
        what = "started from" if place else "its model"
        there = "" if model["is_there"] else f" ({_GONE})"
        yield "models", f"{what}: {model['path']}{there}, of run {model['run']}"


def _short(digest: Any) -> str:
    return str(digest)[:16] if digest else "–"

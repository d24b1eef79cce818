"""`recsys runs` and `lineage`: past results, and the origin of a bundle."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from recsys.cli.options import ConfigArgument, ConfigOption, Json, Root
from recsys.cli.processes import call_pipeline
from recsys.cli.show import emit
from recsys.formats import change, change_span, figure, is_number, moment, span

_DATABASE = "metadata.sqlite"
_SHOWN_FILES = 10


def runs(
    config: ConfigArgument = None,
    root: Root = None,
    n: Annotated[int, Option("-n", min=1)] = 20,
    as_json: Json = False,
) -> None:
    """List past runs, newest first: result, metric, data and pushed version.

    Args:
        n: Number of runs to list.
    """
    from recsys.config.load import load_config
    from recsys.report.runs import RUNS
    from recsys.runs.summary import read_summaries
    from recsys.storage.working_folder import fetched, home_of
    from recsys.tuning import FOLDER, read_records, shown_state

    folder = fetched(root or load_config(config).root_folder, f"{RUNS}/", f"{FOLDER}/")
    home = home_of(folder) or folder
    records, damaged = read_summaries(folder, n)
    studies = read_records(folder)
    is_named = len({record["name"] for record in records}) > 1
    listed = [{"record": file, "why": why} for file, why in damaged]
    result = {"root": str(folder), "runs": records, "damaged": listed, "studies": studies}
    people = {
        f"Runs in {home}": [_run_row(record, is_named=is_named) for record in records],
        "": None if records else f"There are no records of runs in {home}.",
        "damaged": [f"{file} can't be read: {why}" for file, why in damaged],
    }
    for study in studies:
        trials = study["trials"][::-1][:n]
        people[f"Trials of the study {study['name']}"] = [
            {
                "trial": trial["number"],
                "seconds": trial["seconds"],
                "state": "best" if trial["number"] == study["best"] else shown_state(trial),
                study["metric"]: trial["value"],
                "settings": trial["parameters"],
            }
            for trial in trials
        ]
    emit(result, as_json=as_json, people=people)


def _run_row(summary: Mapping[str, Any], *, is_named: bool) -> dict[str, Any]:
    from recsys.report.runs import spans_in_words

    started, data = summary["started"], summary["data"]
    metric = (summary["metrics"] or {}).get(summary["deciding"]) or {}
    blessed = (summary["against"] or {}).get("blessed_model") or {}
    code = str(summary["error"] or "").partition("]")[0].lstrip("[")
    step = f" in {summary['step']}" if summary["step"] else ""
    state = [f"{summary['state']}{step}", code]
    if summary["metrics"] is not None:
        version = "" if summary["version"] is None else f"version {summary['version']}"
        chosen = f"chose {summary['choice']['chosen']}" if summary["choice"] else ""
        start = "warm start" if summary["carried"] else "cold start"
        state = [summary["state"], version, start, chosen]
    return {
        "run": started[:16].replace("T", " ") if started else summary["run"],
        "name": summary["name"] if is_named else None,
        "duration": summary["seconds"],
        "state": ", ".join(filter(None, state)),
        "metric": metric and f"{summary['deciding']} {_with_ends(figure, span, metric, 'value')}",
        "change": _with_ends(change, change_span, blessed, "relative"),
        "rows": data["read"],
        "rejected": data["rejected"],
        "spans": spans_in_words(data["spans"]),
    }


def _with_ends(
    text: Callable[[Any], str], ends: Callable[[Any], str], measured: Mapping[str, Any], name: str
) -> str:
    """Returns a figure with its interval; an empty text if it was not measured."""
    if not is_number(measured.get(name)):
        return ""
    return f"{text(measured[name])} {ends(measured['interval']) if measured['interval'] else ''}"


# --- lineage


def lineage(
    bundle: Path,
    /,
    config: ConfigOption = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Show the data, code, config, vocabularies and earlier models that a bundle was made from.

    Args:
        bundle: Bundle, or pushed version.
    """
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
    emit(origin, as_json=as_json, people=_origin(origin))


def _metadata(
    bundle: Path, config: Path | None, root: Path | None
) -> tuple[dict[str, Any] | None, str | None]:
    """Returns the record in ML Metadata, or the reason why there is none."""
    from recsys.storage.working_folder import home_of

    is_root = (
        folder
        for folder in bundle.resolve().parents
        if (folder / _DATABASE).is_file() or home_of(folder)
    )
    where = root or next(is_root, None)
    if config is None and where is None:
        return None, "the bundle is outside the folder of its run; name that with --root DIR"
    if importlib.util.find_spec("tfx") is None:
        return None, "the extra `pipeline` isn't installed"
    words = ["--bundle", str(bundle.resolve())]
    words += ["--config", str(config)] if config else ["--root", str(where)]
    known = call_pipeline("lineage", words)["found"]
    return (known, None) if known else (None, f"{config or where} has no record of this bundle")


def _origin(origin: Mapping[str, Any]) -> dict[str, Any]:
    from recsys.fingerprint import version_text

    known = origin["lineage"] or {}
    source, base = known.get("source") or {}, known.get("base") or {}
    metadata = origin["metadata"] or {"steps": [], "models": []}
    return {
        "bundle": origin["bundle"],
        "digest": _short(origin["digest"]),
        "name": origin["name"],
        "data": [_data_row(what, data) for what, data in (known.get("data") or {}).items()],
        "code": _short(origin["code"]),
        "training": version_text(source.get("training")),
        "export": version_text(source.get("export")),
        "versions": origin["versions"],
        "vocabulary": {n: _short(d) for n, d in (known.get("vocabulary") or {}).items()},
        "holds": origin["counts"],
        "model": _short(known.get("model")),
        "warm start": {
            "from the model": _short(base.get("fingerprint")),
            "trained until": moment(base.get("trained_until")),
            "warm starts": base.get("warm_starts"),
        }
        if base
        else "none: trained from scratch",
        "choice of the model": _choice_rows(known.get("choice")),
        "evaluation": (known.get("evaluation") or {}).get("sentence"),
        "steps": [
            {
                "step": step["step"],
                "run": step["run"],
                "code": _short(step["code"]),
                "files": _short(step["files_digest"]),
                "no longer there": [
                    Path(o["path"]).parent.name for o in step["outputs"] if not o["is_there"]
                ],
            }
            for step in metadata["steps"]
        ],
        "models, newest first": [
            {**model, "is_there": "" if model["is_there"] else "no longer there"}
            for model in metadata["models"]
        ],
        "steps are unknown": origin["no_metadata"],
    }


def _choice_rows(choice: Mapping[str, Any] | None) -> list[dict[str, Any]] | None:
    """Returns the candidates of a comparison with their figures; None without one."""
    if choice is None:
        return None
    return [
        {
            "model": one["name"],
            choice["metric"]: one["value"],
            "epochs": one["epochs"],
            "chosen": "★" if one["name"] == choice["chosen"] else "",
        }
        for one in choice["candidates"]
    ]


def _data_row(what: str, source: Mapping[str, Any]) -> dict[str, Any]:
    files, counts = source.get("files") or [], source.get("counts") or {}
    spans: dict[str, list[str]] = {}
    for part in source.get("spans") or []:
        spans.setdefault(part.get("state"), []).append(part["name"])
    return {
        "": what,
        "files": [*files[-_SHOWN_FILES:], *(["…"] if len(files) > _SHOWN_FILES else [])],
        "rows": counts.get("read"),
        "rejected": counts.get("rejected"),
        "digest": _short(source.get("digest")),
        "split": counts.get("split"),
        "cut": moment(counts["cut"]) if counts.get("cut") is not None else None,
        "spans": {state: f"{names[0]} … {names[-1]}" for state, names in spans.items()},
    }


def _short(digest: Any) -> str:
    return str(digest)[:16] if digest else ""

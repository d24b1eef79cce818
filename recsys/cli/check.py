"""`recsys check` and `doctor`: inspect data files, and this machine."""

from __future__ import annotations

import itertools
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.progress import DownloadColumn, SpinnerColumn
from typer import Exit, Option

from recsys.cli.options import ConfigArgument, Force, Json, MaybeCount
from recsys.cli.show import emit
from recsys.cli.terminal import Console, progress_bar
from recsys.errors import BusyError, RecsysError, UsageError, shown
from recsys.formats import counted, moment
from recsys.system.files import replacing
from recsys.system.machine import Check, check_root, machine_checks

if TYPE_CHECKING:
    from recsys.data.inspect.findings import Findings
    from recsys.data.inspect.profile import Profile
    from recsys.data.inspect.proposal import Inspection


def check(
    files: list[str],
    /,
    maps: Annotated[list[str] | None, Option("--map")] = None,
    items: str | None = None,
    users: str | None = None,
    out: Path | None = None,
    sample: MaybeCount = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Inspect data files, report their contents, and write a config for them.

    Exits with 1 if a role can't be determined, and prints how to specify it.

    Args:
        files: Interaction files, or globs.
        maps: Role of a column, ROLE=COLUMN,…, such as user=uid; repeatable. Names may contain
            commas.
        items: File of the items.
        users: File of the users.
        out: Config to write. Default: ./NAME.yaml.
        sample: Number of rows to read of each source. Default: 1,048,576.
    """
    from recsys.data.inspect.config_text import config_text
    from recsys.data.inspect.profile import MOST_ROWS
    from recsys.data.inspect.proposal import inspect_files

    name = _name(files[0])
    path = out or Path(f"{name}.yaml")
    if path.exists() and not force:
        raise UsageError(
            "R259",
            f"{str(path)!r} already exists and is only overwritten with --force.",
            "Add --force, or name another file with --out.",
        )
    sides = {what: file for what, file in (("items", items), ("users", users)) if file}
    with progress_bar(Console(stderr=True), DownloadColumn()) as progress:
        advance = partial(progress.advance, progress.add_task("read", total=None, text=""))
        report = inspect_files(
            files, sides, maps or [], int(time.time()), sample or MOST_ROWS, advance
        )
    written = None
    if not report.undecided:
        written = _write(path, config_text(report, name, path.resolve().parent))
    options = [word for what, file in sides.items() for word in (f"--{what}", file)]
    mapping = ["--map", ",".join([*(maps or []), *report.options])]
    command = shlex.join(["recsys", "check", *files, *options, *mapping])
    result = {
        **report.to_json(),
        "try": command if report.options else None,
        "config": written and str(written),
    }
    emit(result, as_json=as_json, people=_for_people(report, result))
    raise Exit(1 if report.undecided else 0)


def _name(file: str) -> str:
    """Returns a pipeline name derived from the name of a file, or of the folder of a pattern."""
    stems = [re.sub(r"\{[^}]*\}|[*?]", "-", part).split(".")[0] for part in Path(file).parts]
    names = [re.sub(r"[^a-z0-9_]+", "-", stem.lower()).strip("-_")[:60] for stem in stems]
    name = next((name for name in reversed(names) if name), "")
    return name if re.match(r"[a-z]", name) else f"data-{name}".strip("-")


def _write(path: Path, text: str) -> Path:
    """Writes a config after validating it; nothing is written if it is invalid."""
    from recsys.config.load import load_config

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
        try:
            load_config(temporary)
        except RecsysError as error:
            rule = error.rule.replace(temporary.name, path.name)
            cure = "Map other columns, or write the config by hand: docs/config.md."
            told = {**error.to_json(), "rule": rule, "cure": cure}
            raise RecsysError.from_json(told) from None
    return path


def _for_people(report: Inspection, result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result with a table for the columns of each source, and for rejected rows."""
    roles = {role.column: f"{name}: {role.reason}" for name, role in report.roles.decided.items()}
    parts: dict[str, Any] = {
        **{name: result[name] for name in ("format", "compression")},
        "files": [shown(path, 200) for path in result["files"]],
        "bytes": sum(file.size for file in report.layout.files),
        "evidence": [shown(sentence, 200) for sentence in result["evidence"]],
        "columns": _columns(report.profiles, roles),
        **_findings(report.findings.get("interactions")),
    }
    for what, side in report.sides.items():
        parts[f"{what}: {side.layout.files[0].path}"] = _columns(side.profiles, side.notes())
        counts = _findings(report.findings.get(what))
        parts |= {f"{what}, {name}": value for name, value in counts.items()}
    return {
        **parts,
        "split": result["split"] and f"{result['split']} ({result['split_reason']})",
        "remarks": result["remarks"],
        "undecided": result["undecided"],
        "try": result["try"],
        "config": result["config"],
        "next": result["config"] and f"Review it, then: recsys run {result['config']}",
    }


def _columns(profiles: Mapping[str, Profile], notes: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "column": shown(profile.name, 28),
            "type": ", ".join([profile.kind, *filter(None, [profile.unit, *profile.time_formats])]),
            "null_share": profile.n_null / max(1, profile.n_rows),
            "distinct": f"{len(profile.distinct):,}",
            "range": _range(profile),
            "examples": ", ".join(shown(example, 16) for example in profile.examples),
            "role and reason": shown(notes.get(profile.name, ""), 120),
        }
        for profile in profiles.values()
    ]


def _range(profile: Profile) -> str:
    if not len(profile.numbers):
        return ""
    is_time = profile.unit is not None or profile.kind == "time"
    ends = map(moment if is_time else "{:.10g}".format, (profile.lowest, profile.highest))
    return " … ".join(end.partition(" ")[0] for end in ends)


def _findings(findings: Findings | None) -> dict[str, Any]:
    """Returns what a run would do with the rows of a source."""
    if findings is None:
        return {}
    counts = {name: n for name, n in findings.to_json().items() if isinstance(n, int)}
    ends = {end: counts.pop(end, None) for end in ("first", "last")}
    rejected = [
        {
            "reason": shown(reason, 60),
            "rows": n_rows,
            "file": shown(Path(findings.examples[reason][0]).name, 30),
            "line": findings.examples[reason][1],
            "example": shown(findings.examples[reason][2]),
        }
        for reason, n_rows in sorted(findings.rejected.items(), key=lambda entry: -entry[1])
    ]
    return {**counts, **{end: moment(t) for end, t in ends.items() if t}, "rejected": rejected}


# --- this machine


def doctor(config: ConfigArgument = None, as_json: Json = False) -> None:
    """Check whether this machine can run recsys, and print how to fix problems."""
    checks = []
    with progress_bar(Console(stderr=True), SpinnerColumn()) as bar:
        task = bar.add_task("checking", total=None, text="")
        for check in itertools.chain(check_config(config), machine_checks()):
            checks.append(check)
            bar.update(task, text=f"{check.name} {check.state}")
    is_healthy = all(check.state != "fail" for check in checks)
    result = {"ok": is_healthy, "checks": [check._asdict() for check in checks]}
    emit(result, as_json=as_json, people={"checks": checks})
    raise Exit(0 if is_healthy else 1)


def check_config(path: Path | None) -> Iterator[Check]:
    """Checks the config, its data files, and the output folder of a run."""
    from recsys.config.load import default_config_path, load_config
    from recsys.data.sources.source_files import match_files
    from recsys.storage.working_folder import check_home

    try:
        path = path or default_config_path()
    except RecsysError:  # A machine can be checked before it has one.
        yield Check("config", "warn", "none here, none named", "recsys init, or name a config.")
        return
    name = "config"
    try:
        config = load_config(path)
        yield Check(name, "ok", config.name)
        name = "data"
        sources = {"interactions": config.data.interactions, **config.data.sides}
        tables = {what: of.format for what, of in sources.items() if not of.files}
        for table in tables.values():
            table.reach([])
        files = {what: match_files(of, what) for what, of in sources.items() if of.files}
        counts = [f"{what}: {counted(len(of), 'file', 'files')}" for what, of in files.items()]
        counts += [f"{what}: {table.title}" for what, table in tables.items()]
        yield Check(name, "ok", ", ".join(counts))
        name = "root"
        try:
            check_home(config.root_folder)
            yield check_root(config.root_folder)
        except BusyError as error:
            yield Check(name, "ok", str(error))
        if config.beam.runner != "local":
            from recsys.data.ingest.engines import check_engine

            name = "engine"
            yield Check(name, "ok", check_engine(config.beam, config.root_folder, config.data))
    except RecsysError as error:
        yield Check(name, "fail", str(error), f"Correct the {name}.")

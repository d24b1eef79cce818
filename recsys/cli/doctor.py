"""`recsys doctor`: checks whether this machine can run recsys, and how to fix problems."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from rich.progress import SpinnerColumn
from typer import Exit

from recsys.cli.options import ConfigArgument, Json
from recsys.cli.show import emit
from recsys.cli.terminal import Console, progress_bar
from recsys.errors import RecsysError
from recsys.formats import counted
from recsys.system.machine import Check, check_root, machine_checks


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
        files = {what: match_files(of, what) for what, of in sources.items() if of.files}
        counts = [f"{what}: {counted(len(of), 'file', 'files')}" for what, of in files.items()]
        yield Check(name, "ok", ", ".join(counts))
        name = "root"
        yield check_root(config.root_folder)
    except RecsysError as error:
        yield Check(name, "fail", str(error), f"Correct the {name}.")

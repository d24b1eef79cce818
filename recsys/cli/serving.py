"""`recsys serve` and `rollback`: the versions of a model that are pushed and served."""

from __future__ import annotations

import datetime as dt
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from recsys.cli.options import ConfigOption, Json, Root
from recsys.cli.terminal import Console, titled_table
from recsys.distribution import install_extra
from recsys.errors import UsageError, visible

if TYPE_CHECKING:
    from recsys.bundles.publishing import Rollback


def serving_folder(config_path: Path | None, root: Path | None) -> Path:
    """Returns the folder of the pushed versions.

    Args:
        config_path: Config of the run. If only `root` is given, the folder must have exactly one
            model.
        root: Folder of the run; None: `root` in the config.

    Raises:
        UsageError: `root` has no model, or several (R904).
    """
    from recsys.config.load import load_config

    if root is None or config_path is not None:
        config = load_config(config_path)
        return (root or config.root_folder) / "serving" / config.name
    names = [path for path in sorted(root.glob("serving/*")) if not path.name.startswith(".")]
    if len(names) != 1:
        rule = f"The folder {str(root)!r} must have exactly one model under serving/."
        cure = "Also name the config of the run: --config FILE."
        raise UsageError("R904", rule, cure, [path.name for path in names])
    return names[0]


def serve(
    config: ConfigOption = None,
    root: Root = None,
    model_dir: Annotated[
        Path | None, Option(help="Folder of the versions. Default: that of the run.")
    ] = None,
    name: Annotated[str | None, Option(help="Model name. Default: the name of the folder.")] = None,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0: any free one.")] = 8501,
    versions: Annotated[int, Option(min=1, max=8, help="Number of newest versions to load.")] = 1,
    hosts: Annotated[
        list[str] | None,
        Option("--allow-host", metavar="NAME", help="Host name to accept; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve the pushed model over HTTP, with the API of TensorFlow Serving and a web page.

    Prints the URL once the server is ready. New versions are loaded when they are pushed.
    """
    folder = _folder(config, root, model_dir, name)
    try:
        from recsys.serving.server.service import Service
        from recsys.serving.server.service import serve as serve_until_stopped
    except ImportError as error:
        rule = "Serving requires the extra 'serve'."
        cure = install_extra("serve")
        raise UsageError("R550", rule, cure, str(error)) from None

    def ready(url: str) -> None:
        print(json.dumps({"url": url, "name": served}) if as_json else url, flush=True)
        sys.stderr.write(f"Serving {served} from {visible(str(folder))}; stop with Ctrl+C.\n")

    served = name or folder.name
    service = Service(served, folder, host, port, versions, hosts=tuple(hosts or ()))
    serve_until_stopped(service, ready)


def _folder(
    config: Path | None, root: Path | None, model_dir: Path | None, name: str | None
) -> Path:
    """Returns the folder of the versions.

    Raises:
        UsageError: The options are inconsistent, or --model-dir is a bundle (R565).
    """
    from recsys.bundles.bundle import MANIFEST
    from recsys.config.load import load_config

    if model_dir is None:
        if name is not None:
            base = root or load_config(config).root_folder
            if Path(name).name != name:
                raise UsageError("R565", "--name must not contain '/'.", "Remove it.", name)
            return base / "serving" / name
        return serving_folder(config, root)
    if config is not None or root is not None:
        rule = "--model-dir can't be combined with --config or --root."
        cure = "Give only one of them."
        raise UsageError("R565", rule, cure, str(model_dir))
    if (model_dir / MANIFEST).exists():
        rule = "--model-dir must contain versions, not be a version."
        cure = f"Name the parent folder: --model-dir {model_dir.absolute().parent}."
        raise UsageError("R565", rule, cure, str(model_dir))
    return model_dir.absolute()


def rollback(
    config: ConfigOption = None,
    root: Root = None,
    to: Annotated[int | None, Option(metavar="VERSION", help="Serve this version again.")] = None,
    list_only: Annotated[bool, Option("--list", help="List the versions and exit.")] = False,
    as_json: Json = False,
) -> None:
    """Withdraw the newest version, so that the one before it is served again."""
    from recsys.bundles.publishing import rollback as roll_back

    serving = serving_folder(config, root)
    if list_only:
        _list(serving, as_json=as_json)
        return
    done = roll_back(serving, to)
    number = int(done.served.name)
    if as_json:
        bundle = str(done.served)
        print(json.dumps({"served": number, "bundle": bundle, "withdrawn": done.withdrawn}))
        return
    console = Console()
    console.write_line(f"Now serving version {number}: {done.served}")
    if done.withdrawn:
        console.write_line(_undo(done, config, root))


def _undo(done: Rollback, config: Path | None, root: Path | None) -> str:
    options = {"--config": config, "--root": root, "--to": done.withdrawn[-1]}
    words = [word for name, value in options.items() if value is not None for word in (name, value)]
    command = shlex.join(["recsys", "rollback", *map(str, words)])
    gone = ", ".join(map(str, done.withdrawn))
    return f"Withdrawn, and not published again: {gone}. To restore: {command}"


def _list(serving: Path, *, as_json: bool) -> None:
    rows = _rows(serving)
    if as_json:
        print(json.dumps({"serving": str(serving), "versions": rows}))
        return
    table = titled_table(f"Versions in {serving}", "version", "state", "since")
    for row in rows:
        table.add_row(str(row["version"]), row["state"], row["since"])
    Console().print(table)


def _rows(serving: Path) -> list[dict[str, Any]]:
    """Returns the state of each version, newest first."""
    from recsys.bundles.publishing import versions, withdrawn_folders

    published = {int(path.name): path for path in versions(serving)}
    folders = {**withdrawn_folders(serving), **published}
    states = dict.fromkeys(folders, "rolled back") | dict.fromkeys(published, "earlier")
    states |= dict.fromkeys([*published][-1:], "served")
    return [
        {"version": number, "state": states[number], "since": _changed(folders[number])}
        for number in sorted(folders, reverse=True)
    ]


def _changed(folder: Path) -> str:
    """Returns the time when the folder was last renamed [UTC]."""
    moment = dt.datetime.fromtimestamp(folder.stat().st_ctime, dt.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")

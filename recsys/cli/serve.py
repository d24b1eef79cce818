"""`recsys serve`: finds the serving folder, and serves it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from recsys.bundles.bundle import MANIFEST
from recsys.cli.recommend import serving_folder
from recsys.config.load import load_config
from recsys.distribution import install_extra
from recsys.errors import UsageError, visible


def serve(
    config: Path | None,
    root: Path | None,
    model_dir: Path | None,
    name: str | None,
    host: str,
    port: int,
    versions: int,
    hosts: list[str],
    *,
    as_json: bool,
) -> None:
    """Serves the pushed versions of a model until it is asked to stop.

    Args:
        config: Config of the run; the one of the shipped data by default.
        root: Folder of the run, instead of the config's.
        model_dir: Folder of the versions, instead of a run's.
        name: Name of the served model; that of the folder by default.
        host: Address to listen at.
        port: Port; 0 for any that is free.
        versions: Newest versions that are loaded.
        hosts: More names that a Host header may have.
        as_json: Print the address as one line of JSON.
    """
    folder = _folder(config, root, model_dir, name)
    try:
        from recsys.serving.server.service import Service, serve
    except ImportError as error:
        rule = "Serving needs the extra 'serve'."
        cure = install_extra("serve")
        raise UsageError("R550", rule, cure, str(error)) from None

    def ready(url: str) -> None:
        print(json.dumps({"url": url, "name": served}) if as_json else url, flush=True)
        sys.stderr.write(f"Serving {served} from {visible(str(folder))}; stop with Ctrl+C.\n")

    served = name or folder.name
    serve(Service(served, folder, host, port, versions, hosts=tuple(hosts)), ready)


def _folder(
    config: Path | None, root: Path | None, model_dir: Path | None, name: str | None
) -> Path:
    """Returns the folder of the versions.

    Raises:
        UsageError: The options contradict each other, or name one bundle.
    """
    if model_dir is None:
        if name is not None:
            base = root or Path(load_config(config).root)
            if Path(name).name != name:
                raise UsageError("R565", "--name must be a plain name.", "Leave '/' out.", name)
            return base / "serving" / name
        return serving_folder(config, root)
    if config is not None or root is not None:
        rule = "--model-dir stands in place of --config and --root."
        cure = "Give one of them."
        raise UsageError("R565", rule, cure, str(model_dir))
    if (model_dir / MANIFEST).exists():
        rule = "--model-dir must hold versions, not be one."
        cure = f"Name the folder that holds it: --model-dir {model_dir.absolute().parent}."
        raise UsageError("R565", rule, cure, str(model_dir))
    return model_dir.absolute()

"""`recsys serve`: finds the serving folder and serves its models."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from recsys.cli.options import ConfigOption, Json, Root
from recsys.cli.recommend import serving_folder
from recsys.distribution import install_extra
from recsys.errors import UsageError, visible


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
            base = root or Path(load_config(config).root)
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

"""`recsys serve` and `rollback`: the versions of a model that are pushed and served."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from recsys.cli.options import ConfigOption, Json, Root
from recsys.cli.show import emit
from recsys.errors import UsageError, visible
from recsys.system.installation import install_extra


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
    model_dir: Path | None = None,
    name: str | None = None,
    host: str = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535)] = 8501,
    grpc_port: Annotated[int | None, Option(min=0, max=65535)] = None,
    versions: Annotated[int, Option(min=1, max=8)] = 1,
    hosts: Annotated[list[str] | None, Option("--allow-host")] = None,
    as_json: Json = False,
) -> None:
    """Serve the pushed model over HTTP and gRPC, with a web page.

    The protocols are TensorFlow Serving's and Open Inference. Prints the URL once the server is
    ready. New versions are loaded when they are pushed.

    Args:
        model_dir: Folder of the versions. Default: the run's.
        name: Model name. Default: the name of the folder.
        host: Address to listen on.
        port: Port; 0: any free one.
        grpc_port: Port of gRPC; 0: any free one. Default: no gRPC.
        versions: Number of newest versions to load.
        hosts: Host name to accept; repeatable.
    """
    folder = _folder(config, root, model_dir, name)
    try:
        from recsys.serving.server.service import Service
        from recsys.serving.server.service import serve as serve_until_stopped
    except ImportError as error:
        rule = "Serving requires the extra 'serve'."
        cure = install_extra("serve")
        raise UsageError("R550", rule, cure, str(error)) from None

    def ready(url: str, grpc_address: str | None) -> None:
        fields = {"url": url, "name": served, "grpc": grpc_address}
        print(json.dumps(fields) if as_json else url, flush=True)
        if grpc_address is not None:
            sys.stderr.write(f"gRPC: {grpc_address}\n")
        sys.stderr.write(f"Serving {served} from {visible(str(folder))}; stop with Ctrl+C.\n")

    served = name or folder.name
    service = Service(served, folder, host, port, grpc_port, versions, hosts=tuple(hosts or ()))
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
    to: int | None = None,
    list_only: Annotated[bool, Option("--list")] = False,
    as_json: Json = False,
) -> None:
    """Withdraw the newest version, so that the one before it is served again.

    Args:
        to: Version to serve again.
        list_only: List the versions and exit.
    """
    from recsys.bundles.publishing import listed
    from recsys.bundles.publishing import rollback as roll_back

    serving = serving_folder(config, root)
    if list_only:
        emit({"serving": str(serving), "versions": listed(serving)}, as_json=as_json)
        return
    done = roll_back(serving, to)
    result = {"served": int(done.served.name), "bundle": str(done.served)}
    withdrawn: dict[str, Any] = {"withdrawn, and not published again": done.withdrawn}
    if done.withdrawn:
        options = {"--config": config, "--root": root, "--to": done.withdrawn[-1]}
        words = [str(w) for option in options.items() if option[1] is not None for w in option]
        withdrawn["to restore"] = shlex.join(["recsys", "rollback", *words])
    people = {**result, **withdrawn}
    emit({**result, "withdrawn": done.withdrawn}, as_json=as_json, people=people)

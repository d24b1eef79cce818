"""Options and arguments shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from recsys.system.files import local_folder

_CONFIG_HELP = "Config file. Default: ./recsys.yaml, else ./configs/movielens_small.yaml."
ConfigArgument = Annotated[Path | None, Argument(metavar="CONFIG", help=_CONFIG_HELP)]
ConfigOption = Annotated[Path | None, Option("--config", help=_CONFIG_HELP)]
Sets = Annotated[
    list[str] | None,
    Option("--set", metavar="A.B=VALUE", help="Override a key of the config; repeatable."),
]
Root = Annotated[
    Path | None,
    Option(
        parser=local_folder,
        metavar="PATH",
        help="Folder of the runs. Default: `root` in the config.",
    ),
]
Count = Annotated[int, Option(min=1)]
MaybeCount = Annotated[int | None, Option(min=1)]
Seed = Annotated[int, Option(min=0)]
Json = Annotated[bool, Option("--json", help="Print JSON on stdout.")]
Data = Annotated[Path, Option(help="Data folder written by ingestion.")]
Mesh = Annotated[
    str | None,
    Option(metavar="AXES", help="Device mesh, such as data=4,model=2."),
]
Out = Annotated[Path, Option(help="Folder to write.")]
Processes = Annotated[int, Option(min=1, max=256, help="Processes on this machine.")]
Coordinator = Annotated[
    str | None,
    Option(metavar="HOST:PORT", help="First process of several, or auto: from the scheduler."),
]
NumProcesses = Annotated[int | None, Option(min=1, help="Number of processes.")]
ProcessId = Annotated[int | None, Option(min=0, help="Index of this process, from 0.")]
Wait = Annotated[
    float | None, Option(min=0, help="Timeout for other hosts, in seconds. Default: 300.")
]
PluginFolder = Annotated[
    Path | None,
    Option(
        exists=True,
        file_okay=False,
        resolve_path=True,
        metavar="DIR",
        help="Folder of the plugins that a model names, if they are not installed.",
    ),
]
Force = Annotated[bool, Option("--force", help="Overwrite existing files.")]

"""Options and arguments of commands: those shared by several, and those of a signature."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from typer import Argument, Option
from typer.models import ParameterInfo

from recsys.errors import UsageError


def _folder_of_runs(root: str) -> Path:
    from recsys.storage.working_folder import local_folder

    return local_folder(root)


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
        parser=_folder_of_runs,
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


# --- options from the signature and the docstring of a function


def command_of(function: Callable[..., None]) -> Callable[..., None]:
    """Returns a function whose signature and docstring Typer makes into a command.

    Positional-only parameters are arguments and the others are options; a name of one letter
    is a short option, and a `bool` that is False by default a flag. `Args` of the docstring
    describes those whose annotation has no help.
    """
    head, helps = _docstring(function)
    signature = inspect.signature(function, eval_str=True)
    parameters = signature.parameters.values()
    arguments = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        _refuse_urls(values.values())
        function(*[values.pop(name) for name in arguments], **values)

    taken = [_parameter(parameter, helps) for parameter in parameters]
    command.__signature__ = signature.replace(parameters=taken)  # type: ignore[attr-defined]
    command.__doc__ = head
    return command


def _refuse_urls(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, Path) and re.match("(s3|gs|az):/", str(value)):
            raise UsageError(
                "R625",
                "Only a root and raw files may be in an object store.",
                "Name a path on this machine, or a model in a bucket by --root.",
                str(value),
            )


def _docstring(function: Callable[..., None]) -> tuple[str, dict[str, str]]:
    """Returns the text above `Args`, a line for each paragraph, and the help of each argument."""
    text, _, described = inspect.getdoc(function).partition("\nArgs:\n")  # type: ignore[union-attr]
    paragraphs = (" ".join(part.split()) for part in text.strip().split("\n\n"))
    entries = re.findall(r"^    (\w+): (.+?)(?=^    \w|\Z)", described, re.DOTALL | re.MULTILINE)
    return "\n\n".join(paragraphs), {name: " ".join(text.split()) for name, text in entries}


def _parameter(parameter: inspect.Parameter, helps: Mapping[str, str]) -> inspect.Parameter:
    """Returns a keyword parameter with the option or argument that Typer makes of it."""
    kind, infos = parameter.annotation, []
    if get_origin(kind) is Annotated:
        kind, *infos = get_args(kind)
    name = parameter.name
    if infos:
        info: ParameterInfo = copy(infos[0])
    elif parameter.kind is parameter.POSITIONAL_ONLY:
        info = Argument(metavar=name.upper())
    elif len(name) == 1:
        info = Option(f"-{name}")
    elif kind is bool and parameter.default is False:
        info = Option(f"--{name.replace('_', '-')}")
    else:
        info = Option()
    info.help = info.help or helps[name]
    return parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=Annotated[kind, info])

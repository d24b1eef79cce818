"""Options of a command from the signature and the docstring of its function."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from copy import copy
from typing import Annotated, Any, get_args, get_origin

from typer import Argument, Option
from typer.models import ParameterInfo


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
        function(*[values.pop(name) for name in arguments], **values)

    taken = [_parameter(parameter, helps) for parameter in parameters]
    command.__signature__ = signature.replace(parameters=taken)  # type: ignore[attr-defined]
    command.__doc__ = head
    return command


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

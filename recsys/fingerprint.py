"""The identity of the running code: its commit, and a fingerprint for cache keys.

TFX's cache key of a component leaves out the modules that the component imports, so each of our
components has a parameter `code`. It changes with any source file of ours, with the files of
plugins whose classes the config names, and with the versions of the packages that compute.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import os
import re
import secrets
import subprocess
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from recsys.registry import modules_of, registered_in
from recsys.system.installation import VERSION

_ROOT = Path(__file__).resolve().parent.parent
_OURS = ("recsys", "components", "pipelines")
_MAIN = "__main__"
CORE = ("grain", "jax", "jaxlib", "keras", "numpy", "orbax-checkpoint", "pyarrow", "scipy")
"""Distributions that training and evaluation compute with."""
PIPELINE = (*CORE, "apache-beam", "faiss-cpu", "tensorflow", "tensorflow-transform", "tfx")
"""Distributions that the steps of a pipeline compute with."""


def code_fingerprint(*config: Any, packages: Sequence[str] = CORE, root: Path = _ROOT) -> str:
    """Returns a digest of the code that runs for parts of a config.

    Args:
        *config: Parts of a config; the classes that they name may be plugins.
        packages: Distributions whose versions count.
        root: Folder of our packages.

    Returns:
        The sha256 in hex; another one in each call if `classes_without_source` names any.
    """
    files = {path.relative_to(root).as_posix(): path for path in _own_files(root)}
    plugins, imported = _plugin_files({module.split(".")[0] for module in modules_of(*config)})
    lines = [f"python {sys.version_info[:2]}", *_versions([*packages, *imported])]
    if _uses_notebook(*config):
        sources, unknown = _notebook_sources()
        lines += [*sources, *(secrets.token_hex() for _ in unknown)]
    return _digest(lines, files | plugins)


def worker_facts(plugins: Iterable[str]) -> dict[str, str]:
    """Returns what all processes of an ingestion must have in common.

    Args:
        plugins: Top-level packages of the config's plugins.

    Returns:
        Versions of Python and of the packages that compute, and digests of the sources.
    """
    files, imported = _plugin_files(plugins)
    own = {path.relative_to(_ROOT).as_posix(): path for path in _own_files(_ROOT)}
    versions = (line.rpartition(" ") for line in _versions({*PIPELINE, *imported}))
    return {
        "Python": ".".join(map(str, sys.version_info[:2])),
        **{name: version for name, _, version in versions},
        "recsys": _digest([], own)[:16],
        **({"plugins": _digest([], files)[:16]} if files else {}),
    }


def _digest(lines: Iterable[str], files: Mapping[str, Path]) -> str:
    digest = hashlib.sha256("\0".join(lines).encode())
    for name, path in sorted(files.items()):
        digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def classes_without_source(*config: Any) -> list[str]:
    """Returns the names of a notebook's definitions that a config uses and whose source is lost.

    Nobody can say whether they have changed, so a run with them can't be resumed.
    """
    return _notebook_sources()[1] if _uses_notebook(*config) else []


def _own_files(root: Path) -> Iterator[Path]:
    for package in _OURS:
        yield from _files_below(root / package)


def _files_below(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.suffix not in (".pyc", ".so") and path.is_file():
            yield path


def _plugin_files(packages: Iterable[str]) -> tuple[dict[str, Path], list[str]]:
    """Returns the files of plugins, and the distributions that they import.

    All files of a plugin's top-level package count, and of the packages that it imports and that
    belong to no distribution.
    """
    files: dict[str, Path] = {}
    distributions: set[str] = set()
    seen, waiting = {*_OURS, *sys.stdlib_module_names} - {_MAIN}, {*packages}
    while waiting - seen:
        package = (waiting - seen).pop()
        seen.add(package)
        distributions.update(_providers().get(package, ()))
        if package in _providers() and package not in packages:
            continue
        for name, path in _package_files(package):
            files[name] = path
            if path.suffix == ".py":
                waiting |= _imported_by(path)
    return files, sorted(distributions)


def _package_files(package: str) -> Iterator[tuple[str, Path]]:
    """Yields name and path of the files of a top-level package or module, or of the script."""
    if package == _MAIN:
        file = getattr(sys.modules[_MAIN], "__file__", None)
        if file is not None:
            yield f"{_MAIN}.py", Path(file)
        return
    spec = importlib.util.find_spec(package)
    for folder in map(Path, spec.submodule_search_locations or () if spec else ()):
        for path in _files_below(folder):
            yield f"{package}/{path.relative_to(folder).as_posix()}", path
    if spec and spec.submodule_search_locations is None and spec.origin is not None:
        yield f"{package}.py", Path(spec.origin)


def _imported_by(file: Path) -> set[str]:
    """Returns the top-level names of the packages that a source imports, anywhere in it."""
    modules: set[str] = set()
    with suppress(SyntaxError):  # Such as a template; an import of it would fail.
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                modules.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module)
    return {module.split(".")[0] for module in modules}


@functools.cache
def _providers() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())


def _versions(distributions: Iterable[str]) -> Iterator[str]:
    for name in sorted(distributions):
        with suppress(metadata.PackageNotFoundError):
            yield f"{name} {metadata.version(name)}"


def _uses_notebook(*config: Any) -> bool:
    is_script = hasattr(sys.modules[_MAIN], "__file__")
    return not is_script and _MAIN in modules_of(*config)


def _notebook_sources() -> tuple[list[str], list[str]]:
    """Returns the code of registered classes of a notebook, and the names of those without source.

    The functions, classes and constants of the notebook that their sources mention count too.
    """
    defined = vars(sys.modules[_MAIN])
    sources: list[str] = []
    unknown: list[str] = []
    seen: set[str] = set()
    waiting: dict[str, Any] = {cls.__name__: cls for cls in registered_in(_MAIN)}
    while waiting:
        name, value = waiting.popitem()
        seen.add(name)
        if not isinstance(value, type | types.FunctionType):
            sources.append(f"{name} = {_text(value)}")
        elif value.__module__ == _MAIN:
            try:
                sources.append(_source(value))
            except (OSError, TypeError):
                unknown.append(name)
                continue
            mentioned = {*re.findall(r"[^\W\d]\w*", sources[-1])} & defined.keys() - seen
            waiting |= {mention: defined[mention] for mention in mentioned}
    return sorted(sources), sorted(unknown)


def _source(value: type | types.FunctionType) -> str:
    """Returns the source of a class or function of a notebook.

    `inspect` finds no class of a notebook, so a class is found by the cell of its methods.

    Raises:
        OSError: It is not known.
    """
    if not isinstance(value, type):
        return inspect.getsource(value)
    header = re.compile(rf"\s*class {value.__name__}\b")
    for method in map(inspect.unwrap, filter(inspect.isfunction, vars(value).values())):
        with suppress(OSError, TypeError):
            lines, _ = inspect.findsource(method)
            starts = [n for n, line in enumerate(lines) if header.match(line)]
            if starts:
                return "".join(inspect.getblock(lines[starts[-1] :]))
    raise OSError(f"the source of {value.__name__} is not known")


def _text(value: Any) -> str:
    """Returns a constant as text that is the same in each process; the type of other values."""
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_text, value))}]"
    is_constant = value is None or isinstance(value, (bool, int, float, complex, str, bytes))
    return repr(value) if is_constant else type(value).__name__


_TIMEOUT_S = 10.0


def source_version(root: Path = _ROOT) -> dict[str, Any]:
    """Returns the commit of the code; without git, or outside a checkout, only its version.

    Args:
        root: Folder that holds our packages.

    Returns:
        `version` of the package; `commit`, 40 hex digits or None; `is_dirty`, whether the packages'
        sources differ from it, or None.
    """
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    changes = None if commit is None else _git(root, "status", "--porcelain", "--", *_OURS)
    return {
        "version": VERSION,
        "commit": commit,
        "is_dirty": None if changes is None else bool(changes),
    }


def version_text(source: Mapping[str, Any] | None) -> str:
    """Returns the result of `source_version` as text; None if it was not recorded."""
    if not source:
        return "not recorded"
    if not source.get("commit"):
        return f"version {source.get('version')}, outside a git checkout"
    dirty = ", with changes that were not committed" if source.get("is_dirty") else ""
    return f"{source['commit']}{dirty}"


def _git(root: Path, *words: str) -> str | None:
    """Returns what git prints, or None if it can't be had."""
    command = ["git", "-C", str(root), "-c", "core.fsmonitor=false", *words]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    environment.pop("GIT_DIR", None)  # As a hook of another repository would have it.
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()

"""Fingerprints of code, for cache keys.

TFX's cache key of a component leaves out the modules that the component imports.
So each of our components has a parameter `code`: it changes when a source changes
that the component may run, and stays when any other does.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("recsys", "components", "pipelines")


def code_fingerprint(*modules: str, root: Path = _ROOT) -> str:
    """Returns one text for one behaviour of `modules`.

    Args:
        *modules: Dotted names of modules of ours.
        root: Folder that holds our packages.

    Returns:
        The sha256 in hex over the sources of the modules and of all modules of
        ours that they import, directly or not, over the other files of these
        packages (templates and the like), and over the versions of Python and of
        the distributions that they import.
    """
    files, foreign = _closure(modules, root)
    digest = hashlib.sha256(f"python {sys.version_info[:2]}".encode())
    for file in sorted(files):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    for line in _versions(foreign):
        digest.update(line.encode() + b"\0")
    return digest.hexdigest()


def _closure(modules: Iterable[str], root: Path) -> tuple[set[Path], set[str]]:
    """Returns the files of ours and the foreign top-level names behind `modules`."""
    files: set[Path] = set()
    foreign: set[str] = set()
    seen: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        if module.split(".")[0] not in _PACKAGES:
            foreign.add(module.split(".")[0])
            continue
        file = _source(module, root)
        if file is None:
            continue  # `from package import name`: a name that is no module.
        files.add(file)
        if file.name == "__init__.py":
            files.update(_other_files(file.parent))
        parents = module.split(".")[:-1]
        waiting.extend(".".join(parents[: i + 1]) for i in range(len(parents)))
        waiting.extend(_imports(file, module))
    return files, foreign - set(sys.stdlib_module_names)


def _source(module: str, root: Path) -> Path | None:
    path = root.joinpath(*module.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None


def _other_files(package: Path) -> Iterator[Path]:
    """Yields the files of a package that are not Python, subpackages left out."""
    for path in package.iterdir():
        if path.is_dir() and path.name != "__pycache__" and not (path / "__init__.py").exists():
            yield from _other_files(path)
        elif path.is_file() and path.suffix not in (".py", ".pyc"):
            yield path


def _imports(file: Path, module: str) -> Iterator[str]:
    """Yields the modules, and the names that may be modules, that `file` imports."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _versions(names: Iterable[str]) -> list[str]:
    """Returns `distribution version` of those that provide the top-level `names`."""
    providers = _providers()
    distributions = {one for name in names for one in providers.get(name, ())}
    return sorted(f"{one} {metadata.version(one)}" for one in distributions)


@functools.cache
def _providers() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())

"""Fingerprints of code, for cache keys.

TFX's cache key of a component leaves out the modules that the component imports.
So each of our components has a parameter `code`: it changes when a source changes
that the component may run, and stays when any other does.

What a component may run is what its modules import, wherever in them, and what these
import in turn; the modules of the classes that its config names; and, of a plugin's class,
all sources of the plugin's top-level package. Of some packages that would be too much: see
`_NAMES` and `_BY_HAND`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from recsys.contents import contents_of
from recsys.registry import modules_of

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("recsys", "components", "pipelines")
_NAMES = ("recsys.report",)
"""Packages that pass on names of their modules, which define and do nothing more when they
are imported: whoever imports a name runs the module that defines it, and not the others.
So are packages with lazy contents."""
_LAZY = b"lazy_contents(__name__, __file__)"
_BY_HAND = ("recsys.config_file",)
"""Modules that read a whole config where a person starts a stage. A component hands its
stage the part that it runs by, which is a parameter of its own."""
_TEMPLATE = ".jinja"


def code_fingerprint(*modules: str, config: Sequence[Any] = (), root: Path = _ROOT) -> str:
    """Returns one text for one behaviour of `modules`.

    Args:
        *modules: Dotted names of modules of ours.
        config: Parts of a config; the classes that they name are run too.
        root: Folder that holds our packages.

    Returns:
        The sha256 in hex over the sources of the modules and of all modules of
        ours that they import, directly or not, over the other files of these
        packages (templates and the like), and over the versions of Python and of
        the distributions that they import.
    """
    named = modules_of(*config)
    plugins = {name.split(".")[0] for name in named} - {*_PACKAGES}
    ours = [name for name in named if name.split(".")[0] not in plugins]
    files, foreign = _closure([*modules, *ours], root)
    sources = [(file.relative_to(root).as_posix(), file) for file in files]
    sources += [source for plugin in plugins for source in _plugin_sources(plugin)]
    digest = hashlib.sha256(f"python {sys.version_info[:2]}".encode())
    for name, file in sorted(sources):
        digest.update(name.encode() + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    for line in _versions(foreign | plugins):
        digest.update(line.encode() + b"\0")
    return digest.hexdigest()


def _plugin_sources(package: str) -> Iterator[tuple[str, Path]]:
    """Yields name and path of all files of a top-level package, or of a single module."""
    spec = importlib.util.find_spec(package)
    if spec is None or (spec.origin is None and spec.submodule_search_locations is None):
        return
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{package}/{path.relative_to(folder).as_posix()}", path
    if not folders and spec.origin is not None:
        yield f"{package}.py", Path(spec.origin)


def _closure(modules: Iterable[str], root: Path) -> tuple[set[Path], set[str]]:
    """Returns the files of ours and the foreign top-level names behind `modules`."""
    files: set[Path] = set()
    foreign: set[str] = set()
    packages: set[Path] = set()
    seen = set(_BY_HAND) - set(modules)
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
        packages.add(file.parent)
        parents = module.split(".")[:-1]
        above = {".".join(parents[: i + 1]) for i in range(len(parents))}
        waiting.extend(name for name in above if not _passes_on(name, root))
        waiting.extend(_imports(file, module, root))
    return files | _data_files(packages, files), foreign - set(sys.stdlib_module_names)


def _source(module: str, root: Path) -> Path | None:
    path = root.joinpath(*module.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None


def _data_files(packages: Iterable[Path], sources: Iterable[Path]) -> set[Path]:
    """Returns the files of packages that are not Python, of templates those that are named."""
    others = {file for package in packages for file in _other_files(package)}
    templates = {file for file in others if file.suffix == _TEMPLATE}
    files, waiting = others - templates, [*sources]
    while waiting:
        text = waiting.pop().read_bytes()
        named = {file for file in templates - files if file.name.encode() in text}
        files |= named
        waiting.extend(named)
    return files


def _other_files(package: Path) -> Iterator[Path]:
    """Yields the files of a package that are not Python, subpackages left out."""
    for path in package.iterdir():
        if path.is_dir() and path.name != "__pycache__" and not (path / "__init__.py").exists():
            yield from _other_files(path)
        elif path.is_file() and path.suffix not in (".py", ".pyc"):
            yield path


def _imports(file: Path, module: str, root: Path) -> Iterator[str]:
    """Yields the modules, and the names that may be modules, that `file` imports."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for statement in _statements(file.read_bytes()):
        base = statement.base(package)
        if _passes_on(base, root):
            yield from _homes(base, statement.names, root)
        else:
            yield base
            yield from (f"{base}.{name}" for name in statement.names)
            if not statement.names:  # `import recsys.config.data` binds the package too.
                parts = base.split(".")
                above = (".".join(parts[:n]) for n in range(2, len(parts)))
                yield from (name for name in above if _passes_on(name, root))


def _passes_on(package: str, root: Path) -> bool:
    """Returns whether a module is a package that only passes on names."""
    file = _source(package, root)
    if package.split(".")[0] not in _PACKAGES or file is None or file.name != "__init__.py":
        return False
    return package in _NAMES or _LAZY in file.read_bytes()


def _homes(package: str, names: Iterable[str], root: Path) -> Iterator[str]:
    """Yields the modules that `names` of a package come from; the package, if one is its own."""
    file = _source(package, root)
    text = file.read_bytes() if file else b""
    homes = {
        name: statement.base(package) for statement in _statements(text) for name in statement.bound
    }
    if _LAZY in text:
        homes = {name: home.split(":")[0] for name, home in contents_of(text.decode()).items()}
    # Without names the package itself is imported, and any of them may be used.
    for name in names or [""]:
        is_module = name and _source(f"{package}.{name}", root) is not None
        yield f"{package}.{name}" if is_module else homes.get(name, package)


class _Import(NamedTuple):
    """A statement that imports.

    Attributes:
        module: The module, without what stands for packages above.
        level: Packages above; 0: the name is absolute.
        names: What is taken from it; none: the module itself is.
        bound: What these are called here.
    """

    module: str
    level: int = 0
    names: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()

    def base(self, package: str) -> str:
        """Returns the full name of the module, for a statement in `package`."""
        if not self.level:
            return self.module
        parts = package.split(".")
        above = parts[: len(parts) - self.level + 1]
        return ".".join([*above, self.module] if self.module else above)


@functools.cache
def _statements(source: bytes) -> tuple[_Import, ...]:
    """Returns the imports of a source, wherever in it, but for those of type checkers alone."""
    imports: list[_Import] = []
    for node in _run(ast.parse(source)):
        if isinstance(node, ast.Import):
            imports += [_Import(alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            bound = tuple(alias.asname or alias.name for alias in node.names)
            imports.append(_Import(node.module or "", node.level, names, bound))
    return tuple(imports)


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from (part for other in node.orelse for part in (other, *_run(other)))
        else:
            yield node
            yield from _run(node)


def _versions(names: Iterable[str]) -> list[str]:
    """Returns `distribution version` of those that provide the top-level `names`."""
    providers = _providers()
    distributions = {provider for name in names for provider in providers.get(name, ())}
    return sorted(f"{name} {metadata.version(name)}" for name in distributions)


@functools.cache
def _providers() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())

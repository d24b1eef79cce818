"""Fingerprints of code, for cache keys.

TFX's cache key of a component leaves out the modules that the component imports.
So each of our components has a parameter `code`: it changes when a source changes
that the component may run, and stays when any other does.

What a component may run is what its modules import, wherever in them, and what these
import in turn; the modules of the classes that its config names; and, of a plugin's class,
all sources of the plugin's top-level package. Of some packages that would be too much: see
`_LAZY` and `_BY_HAND`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from recsys.contents import contents_of
from recsys.registry import modules_of, registered_in

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("recsys", "components", "pipelines")
_LAZY = b"lazy_contents(__name__, __file__)"
"""In packages that only pass on names of their modules: importing a name runs the module that
defines it, and not the others."""
_BY_HAND = ("recsys.config.load",)
"""Modules that read a whole config where a person starts a stage. A component hands its
stage the part that it runs by, which is a parameter of its own."""
_TEMPLATE = ".jinja"
_MAIN = "__main__"


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
    for kept in (_source, _passes_on, _contents):  # Files change between calls, not within one.
        kept.cache_clear()
    code = _Code(root)
    code.add(*modules, *modules_of(*config))
    digest = hashlib.sha256(f"python {sys.version_info[:2]}".encode())
    for name, file in sorted(code.files()):
        digest.update(name.encode() + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    for line in [*_versions(code.foreign), *code.definitions]:
        digest.update(line.encode() + b"\0")
    return digest.hexdigest()


class _Code:
    """What some modules run.

    Args:
        root: Folder that holds our packages.

    Attributes:
        foreign: Top-level names of the packages of distributions.
        definitions: Code of what a notebook defines, which has no file.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._own: set[Path] = set()
        self._of_plugins: dict[str, Path] = {}
        self.foreign: set[str] = set()
        self.definitions: list[str] = []

    def files(self) -> list[tuple[str, Path]]:
        """Returns name and path of each file; the name is the same on every machine."""
        own = self._own | _data_files({file.parent for file in self._own}, self._own)
        named = [(file.relative_to(self._root).as_posix(), file) for file in own]
        return [*named, *self._of_plugins.items()]

    def add(self, *modules: str) -> None:
        """Adds modules and all that they run.

        Those that aren't ours are plugins: all of their package counts, and so do the packages
        that it imports and that no distribution has.
        """
        installed = {*sys.stdlib_module_names, *_providers()}
        tops = {module.split(".")[0] for module in modules}
        plugins, seen = tops - {*_PACKAGES}, set(_BY_HAND) - {*modules}
        waiting = [*modules]
        while waiting:
            module = waiting.pop()
            package = module.split(".")[0]
            name = package if package in plugins else module
            if name in seen:
                continue
            seen.add(name)
            if package in plugins:
                imported = self._add_plugin(package)
                plugins |= {n.split(".")[0] for n in imported} - installed - {*_PACKAGES}
                waiting += imported
            elif package in _PACKAGES:
                waiting += self._add_own(module)
            if package not in _PACKAGES and package not in sys.stdlib_module_names:
                self.foreign.add(package)

    def _add_own(self, module: str) -> list[str]:
        """Adds a module of ours; returns what it imports."""
        file = _source(module, self._root)
        if file is None:
            return []  # `from package import name`: a name that is no module.
        self._own.add(file)
        parents = module.split(".")[:-1]
        packages = (".".join(parents[: n + 1]) for n in range(len(parents)))
        above = [name for name in packages if not _passes_on(name, self._root)]
        return [*above, *_imports(file, module, self._root)]

    def _add_plugin(self, package: str) -> list[str]:
        """Adds all of a top-level package that isn't ours; returns what it imports."""
        imported: list[str] = []
        if package == _MAIN and not hasattr(sys.modules[_MAIN], "__file__"):
            self.definitions += _definitions(vars(sys.modules[_MAIN]))
        for name, path in _plugin_sources(package):
            self._of_plugins[name] = path
            module = name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            if path.suffix == ".py":
                with suppress(SyntaxError):  # Such as a template; an import of it would fail.
                    imported += _imports(path, module, self._root)
        return imported


def _definitions(names: dict[str, Any]) -> Iterator[str]:
    """Yields the code of the classes that a notebook registers, and of what they use of it.

    Args:
        names: What the notebook defines.
    """
    waiting: list[Any] = [*registered_in(_MAIN)]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type):
            if value.__module__ == _MAIN:
                yield from (f"{value.__name__}.{k} = {_text(v)}" for k, v in vars(value).items())
                waiting += [*value.__bases__, *vars(value).values()]
        elif isinstance(value, (staticmethod, classmethod)):
            waiting.append(value.__func__)
        elif isinstance(value, property):
            waiting += [value.fget, value.fset]
        elif isinstance(value, types.FunctionType):
            if value.__module__ == _MAIN:
                yield f"{value.__name__} {_text(value.__defaults__)}"
                waiting.append(value.__code__)
        elif isinstance(value, types.CodeType):
            used = [name for name in value.co_names if name in names]
            yield f"{value.co_name} {value.co_code.hex()} {value.co_names}"
            yield _text(value.co_consts)
            yield from (f"{name} = {_text(names[name])}" for name in used)
            waiting += [*(names[name] for name in used), *value.co_consts]


def _text(value: Any) -> str:
    """Returns a constant as text that is the same in each process; of others the type alone."""
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    is_constant = value is None or isinstance(value, (bool, int, float, complex, str, bytes))
    return repr(value) if is_constant else type(value).__name__


def _plugin_sources(package: str) -> Iterator[tuple[str, Path]]:
    """Yields name and path of all files of a top-level package, or of a single module."""
    if package == _MAIN:  # A script.
        file = getattr(sys.modules[_MAIN], "__file__", None)
        if file is not None:
            yield f"{_MAIN}.py", Path(file)
        return
    spec = importlib.util.find_spec(package)
    if spec is None:
        return
    for folder in map(Path, spec.submodule_search_locations or ()):
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{package}/{path.relative_to(folder).as_posix()}", path
    if spec.submodule_search_locations is None and spec.origin is not None:
        yield f"{package}.py", Path(spec.origin)


@functools.cache
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
    """Yields a package's files that are neither Python nor built, subpackages left out."""
    for path in package.iterdir():
        if path.is_dir() and path.name != "__pycache__" and not (path / "__init__.py").exists():
            yield from _other_files(path)
        elif path.is_file() and path.suffix not in (".py", ".pyc", ".so"):
            yield path


def _imports(file: Path, module: str, root: Path) -> Iterator[str]:
    """Yields the modules, and the names that may be modules, that `file` imports."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for relative, names in _statements(file.read_bytes()):
        base = importlib.util.resolve_name(relative, package)
        if _passes_on(base, root):
            yield from _homes(base, names, root)
        else:
            yield base
            yield from (f"{base}.{name}" for name in names)
            if not names:  # `import recsys.config.data` binds the package too.
                parts = base.split(".")
                above = (".".join(parts[:n]) for n in range(2, len(parts)))
                yield from (name for name in above if _passes_on(name, root))


@functools.cache
def _passes_on(package: str, root: Path) -> bool:
    """Returns whether a module is a package that only passes on names."""
    file = _source(package, root) if package.split(".")[0] in _PACKAGES else None
    return file is not None and file.name == "__init__.py" and _LAZY in file.read_bytes()


def _homes(package: str, names: Iterable[str], root: Path) -> Iterator[str]:
    """Yields the modules that `names` of a package come from; the package, if one is its own."""
    homes = _contents(package, root)
    # Without names the package itself is imported, and any of them may be used.
    for name in names or [""]:
        is_module = name and _source(f"{package}.{name}", root) is not None
        yield f"{package}.{name}" if is_module else homes.get(name, package).split(":")[0]


@functools.cache
def _contents(package: str, root: Path) -> dict[str, str]:
    """Returns the module that each name of a package comes from."""
    file = _source(package, root)
    return contents_of(file.read_text()) if file else {}


@functools.cache
def _statements(source: bytes) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Returns the imports of a source, wherever in it, but for those of type checkers alone.

    Of each the module, with a dot for each level of a relative one, and what is taken from it:
    nothing where the module itself is imported. Of our modules also what is taken from them by
    a dot, as `recsys.losses.Bpr`.
    """
    imports: list[tuple[str, tuple[str, ...]]] = []
    modules: dict[str, str] = {}
    dotted: set[tuple[str, ...]] = set()
    for node in _run(ast.parse(source)):
        if isinstance(node, ast.Import):
            imports += [(alias.name, ()) for alias in node.names]
            for alias in node.names:
                top = alias.name.split(".")[0]
                modules[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            imports.append((module, tuple(alias.name for alias in node.names)))
            if not node.level:
                modules |= {a.asname or a.name: f"{module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Attribute):
            dotted.add(_parts(node))
    for first, *rest in sorted(dotted - {()}):
        module = modules.get(first, "")
        if module.split(".")[0] in _PACKAGES:
            for name in rest[:2]:
                imports.append((module, (name,)))
                module = f"{module}.{name}"
    return tuple(imports)


def _parts(node: ast.AST) -> tuple[str, ...]:
    """Returns the names of `a.b.c`; none where it doesn't begin with a name."""
    if isinstance(node, ast.Name):
        return (node.id,)
    above = _parts(node.value) if isinstance(node, ast.Attribute) else ()
    return (*above, node.attr) if above and isinstance(node, ast.Attribute) else ()


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

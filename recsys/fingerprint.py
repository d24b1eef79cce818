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
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from recsys.contents import contents_of
from recsys.registry import modules_of, registered_in

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("recsys", "components", "pipelines")
_LAZY = b"lazy_contents(__name__, __file__)"
"""In packages that pass on names of their modules, and do nothing more when they are imported:
whoever imports a name runs the module that defines it, and not the others."""
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
    named = modules_of(*config)
    plugins = _plugin_closure({name.split(".")[0] for name in named} - {*_PACKAGES}, root)
    ours = [name for name in named if name.split(".")[0] in _PACKAGES]
    files, foreign = _closure([*modules, *ours, *plugins.ours], root)
    sources = [(file.relative_to(root).as_posix(), file) for file in files]
    sources += plugins.sources.items()
    digest = hashlib.sha256(f"python {sys.version_info[:2]}".encode())
    for name, file in sorted(sources):
        digest.update(name.encode() + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    for line in [*_versions(foreign | plugins.foreign), *plugins.definitions]:
        digest.update(line.encode() + b"\0")
    return digest.hexdigest()


class _Plugins(NamedTuple):
    """What plugins run.

    Attributes:
        sources: Their files, by a name that is the same on every machine.
        ours: Modules of ours that they import.
        foreign: Top-level names of the other packages that they import, and their own.
        definitions: Code of what a notebook defines, which has no file.
    """

    sources: dict[str, Path]
    ours: set[str]
    foreign: set[str]
    definitions: list[str]


def _plugin_closure(packages: set[str], root: Path) -> _Plugins:
    """Returns what top-level packages run, and those beside them that no distribution has."""
    plugins = _Plugins({}, set(), set(), [])
    installed = {*sys.stdlib_module_names, *_providers()}
    waiting = [*packages]
    while waiting:
        package = waiting.pop()
        plugins.foreign.add(package)
        if package == _MAIN and not hasattr(sys.modules[_MAIN], "__file__"):
            plugins.definitions.extend(_definitions(vars(sys.modules[_MAIN])))
        for name, path in _plugin_sources(package):
            plugins.sources[name] = path
            for module in _imported_by(name, path, root):
                top = module.split(".")[0]
                if top in _PACKAGES:
                    plugins.ours.add(module)
                elif top in installed:
                    plugins.foreign.add(top)
                elif top not in plugins.foreign:
                    waiting.append(top)
    return plugins


def _imported_by(name: str, path: Path, root: Path) -> list[str]:
    """Returns the modules that a file of a plugin imports; none, if it isn't Python."""
    if path.suffix != ".py":
        return []
    module = name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    try:
        return list(_imports(path, module, root))
    except SyntaxError:  # A template, say; whoever imports it learns of it.
        return []


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
    return _LAZY in file.read_bytes()


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
    """Returns the imports of a source, wherever in it, but for those of type checkers alone.

    Of our modules also what is taken from them by a dot, as `recsys.losses.Bpr`.
    """
    imports: list[_Import] = []
    modules: dict[str, str] = {}
    dotted: set[tuple[str, ...]] = set()
    for node in _run(ast.parse(source)):
        if isinstance(node, ast.Import):
            imports += [_Import(alias.name) for alias in node.names]
            for alias in node.names:
                top = alias.name.split(".")[0]
                modules[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            bound = tuple(alias.asname or alias.name for alias in node.names)
            imports.append(_Import(node.module or "", node.level, names, bound))
            if not node.level:
                modules.update(zip(bound, (f"{node.module}.{name}" for name in names), strict=True))
        elif isinstance(node, ast.Attribute):
            dotted.add(_parts(node))
    for first, *rest in sorted(dotted - {()}):
        module = modules.get(first, "")
        if module.split(".")[0] in _PACKAGES:
            for name in rest[:2]:
                imports.append(_Import(module, 0, (name,), (name,)))
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

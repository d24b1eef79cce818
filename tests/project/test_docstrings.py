"""The public API has docstrings; elsewhere they are optional, so ruff doesn't ask for them."""

import inspect

import pytest

import recsys
import recsys.embedding
from recsys import registry


def offered():
    """Returns what the package, the engine and the registry offer, by qualified name."""
    things = [getattr(recsys, name) for name in recsys.__all__]
    things += [getattr(recsys.embedding, name) for name in recsys.embedding.__all__]
    things += [
        registry.get(kind, name) for kind in registry.BUILT_INS for name in registry.names(kind)
    ]
    ours = [
        thing for thing in things if (getattr(thing, "__module__", None) or "").startswith("recsys")
    ]
    return {f"{thing.__module__}.{thing.__qualname__}": thing for thing in ours}


def undocumented_members(cls):
    """Returns the public methods and properties of a class, its own, without a docstring.

    One that overrides a documented method needs none.
    """
    return [
        name
        for name, member in vars(cls).items()
        if not name.startswith("_")
        and (inspect.isroutine(member) or isinstance(member, (property, classmethod, staticmethod)))
        and not inspect.getdoc(getattr(cls, name))
    ]


@pytest.mark.parametrize(("name", "thing"), offered().items(), ids=offered())
def test_what_is_offered_has_a_docstring(name, thing):
    assert vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    if inspect.isclass(thing):
        assert undocumented_members(thing) == []


def test_a_missing_docstring_is_found():
    class Undocumented:
        def call(self): ...

    assert undocumented_members(Undocumented) == ["call"]

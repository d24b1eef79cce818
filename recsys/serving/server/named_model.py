"""What the page needs to know of a version, beside its signatures."""

from __future__ import annotations

from typing import Protocol

from recsys.serving.server.catalogue_search import ItemFilters, Names
from recsys.serving.server.tensors import Model


class NamedModel(Model, Protocol):
    """A model whose users and items have names."""

    @property
    def names(self) -> Names:
        """Its users and items."""
        ...

    @property
    def filters(self) -> ItemFilters:
        """What its items can be filtered by."""
        ...

    @property
    def excludes_seen(self) -> bool:
        """Whether its answers leave out what users have seen, by default."""
        ...

    @property
    def most(self) -> int:
        """Items of an answer."""
        ...

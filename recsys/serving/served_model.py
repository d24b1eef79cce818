"""A loaded bundle: the interface of servers and of Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from recsys.bundles.publishing import is_version
from recsys.savedmodel.loading import SavedModelGraph
from recsys.savedmodel.signatures import Arrays, Signature


class ServedModel:
    """The signatures of a bundle. Thread-safe.

    Args:
        graph: The signatures.
        bundle: Folder of the bundle.

    Attributes:
        bundle: Folder of the bundle.
        signatures: Inputs of each signature.
        version: Number of the published version; 0 for an unpublished bundle.
    """

    answers: ClassVar[str]
    """Output of the signatures, as in the manifest."""
    joined: ClassVar[frozenset[str]] = frozenset()
    """Signatures whose small requests may be batched, padded to a common length."""

    def __init__(self, graph: SavedModelGraph, bundle: Path) -> None:
        self._graph, self.bundle = graph, bundle
        self.signatures: dict[str, Signature] = dict(graph.signatures)
        self.version = int(bundle.name) if is_version(bundle.name) else 0

    @property
    def metadata(self) -> dict[str, Any]:
        """Signatures in TensorFlow Serving's JSON form."""
        return self._graph.metadata

    def ask(self, signature: str, inputs: Arrays) -> Arrays:
        """Returns the outputs of a signature.

        Args:
            signature: Name of the signature.
            inputs: All of its inputs, in its dtypes and shapes; text as bytes in object arrays.

        Raises:
            UnreadableInputsError: The signature can't read their content (R563).
        """
        return self._graph.ask(signature, inputs)

    def check_inputs(self, inputs: Arrays) -> None:
        """Raises a UsageError for values without a possible answer."""

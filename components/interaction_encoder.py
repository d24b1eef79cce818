"""InteractionEncoder: examples, vocabularies and token rows → the data folder."""

import shutil
from pathlib import Path

from tfx.dsl.component.experimental.annotations import (
    InputArtifact,
    OutputArtifact,
    Parameter,
)
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Examples, TransformGraph

from components.artifacts import InteractionData, Vocabularies
from components.entity_gen import EntitySource
from components.interaction_gen import CUT_PROPERTY, split_of
from recsys.data.ingest.entity_rows import Transformed, write_catalogue, write_user_features
from recsys.data.ingest.store_writer import build_store
from recsys.data.input_files import seal_inputs


@component
def InteractionEncoder(
    interactions: InputArtifact[Examples],
    vocabularies: InputArtifact[Vocabularies],
    data: OutputArtifact[InteractionData],
    config: Parameter[str],
    code: Parameter[str],
    items: InputArtifact[Examples] = None,
    item_tokens: InputArtifact[Examples] = None,
    item_graph: InputArtifact[TransformGraph] = None,
    user_tokens: InputArtifact[Examples] = None,
    user_graph: InputArtifact[TransformGraph] = None,
) -> None:
    """Writes everything that training and evaluation read into one folder.

    Args:
        interactions: Examples, the splits `train` and `eval`.
        vocabularies: Rows of users and items.
        data: The data folder, see docs/architecture.md.
        config: `EntitySource` as canonical JSON.
        code: Fingerprint of the code.
        items: Examples of the catalogue, if there is one.
        item_tokens: Token rows of the items, if they have features.
        item_graph: The Transform graph that made them.
        user_tokens: Token rows of the users, if they have features.
        user_graph: The Transform graph that made them.
    """
    del code
    folder = Path(data.uri)
    shutil.copytree(vocabularies.uri, folder / "vocabulary", dirs_exist_ok=True)
    build_store(
        examples=Path(interactions.uri),
        vocabularies=Path(vocabularies.uri),
        cut=interactions.get_int_custom_property(CUT_PROPERTY),
        store=folder / "store",
        split=split_of(interactions),
    )
    sources = EntitySource.model_validate_json(config)
    of_items = _transformed(item_tokens, item_graph)
    write_catalogue(folder, sources.items, None if items is None else Path(items.uri), of_items)
    of_users = _transformed(user_tokens, user_graph)
    if sources.users is not None and of_users is not None:
        write_user_features(folder, sources.users, of_users)
    seal_inputs(folder)


def _transformed(tokens: Examples | None, graph: TransformGraph | None) -> Transformed | None:
    if tokens is None or graph is None:
        return None
    return Transformed(Path(tokens.uri), Path(graph.uri))

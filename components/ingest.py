"""The components that turn raw data into the data folder of a training."""

import shutil
from pathlib import Path

import apache_beam as beam
from tfx.dsl.component.experimental.annotations import (
    BeamComponentParameter,
    InputArtifact,
    OutputArtifact,
    Parameter,
)
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Examples, TransformGraph

from components.artifacts import (
    DeadLetters,
    InteractionData,
    Verdict,
    Vocabularies,
    existing,
    set_parquet_splits,
)
from recsys.config import (
    InteractionsConfig,
    ItemsConfig,
    Strict,
    UsersConfig,
    VocabulariesConfig,
)
from recsys.data import event_features
from recsys.data.dataset import seal_inputs
from recsys.data.ingest.entity_rows import SPLIT, Transformed, ingest_entities, write_entities
from recsys.data.ingest.event_values import learn_event_features
from recsys.data.ingest.examples import SPLITS
from recsys.data.ingest.ingestion import InteractionSource, ingest_interactions
from recsys.data.ingest.landed import LANDED_FOLDER, pin_source
from recsys.data.ingest.statistics import write_statistics
from recsys.data.ingest.store_writer import build_store, make_vocabularies
from recsys.data.split import BY_TIME, SplitRule

CUT_PROPERTY = "cut"
"""Custom property of the examples: end of the training data [seconds since 1970, UTC]; 0 without
times."""
SPLIT_PROPERTY = "split"
"""Custom property of the examples: their split; missing for a split by time."""


@component(use_beam=True)
def InteractionGen(
    examples: OutputArtifact[Examples],
    dead_letters: OutputArtifact[DeadLetters],
    config: Parameter[str],
    files_digest: Parameter[str],
    segments: Parameter[str],
    code: Parameter[str],
    beam_pipeline: BeamComponentParameter[beam.Pipeline] = None,
) -> None:
    """Reads interactions, drops bad rows and duplicates, and splits them.

    Args:
        examples: Parquet examples, the splits `train` and `eval`.
        dead_letters: The bad rows, and the counts of all.
        config: `InteractionSource` as canonical JSON.
        files_digest: Digest of the files' contents.
        segments: Folder of the spans' cache, shared by runs.
        code: Fingerprint of the code.
        beam_pipeline: Runs the work.
    """
    del files_digest
    source = InteractionSource.model_validate_json(config)
    landed = Path(segments).with_name(LANDED_FOLDER)
    pinned = pin_source("interactions", source.interactions, landed, source.forget)
    source = source.model_copy(update={"interactions": pinned})
    summary = ingest_interactions(
        source, examples.uri, dead_letters.uri, beam_pipeline, Path(segments), code
    )
    set_parquet_splits(examples, SPLITS)
    examples.set_int_custom_property(CUT_PROPERTY, summary["cut"])
    if source.rule != BY_TIME:
        examples.set_string_custom_property(SPLIT_PROPERTY, source.rule.text)


def split_of(interactions: Examples) -> SplitRule:
    """Returns the split of examples from InteractionGen."""
    return SplitRule.from_text(interactions.get_string_custom_property(SPLIT_PROPERTY))


class EntitySource(Strict):
    """Part of the config on items, users, or both."""

    items: ItemsConfig | None = None
    """The catalogue."""
    users: UsersConfig | None = None
    """Users' features."""
    forget: str | None = None
    """File of the users to leave out, see `recsys.data.forgotten`."""
    label_after_s: int = 0
    """Age from which labels of events are known [s]."""


class VocabularySource(Strict):
    """Part of the config on the rows of ids and of the tokens of events' features."""

    vocabulary: VocabulariesConfig
    """Vocabularies of users and items."""
    interactions: InteractionsConfig
    """The features of events, and the column of times."""


@component(use_beam=True)
def EntityGen(
    examples: OutputArtifact[Examples],
    dead_letters: OutputArtifact[DeadLetters],
    config: Parameter[str],
    files_digest: Parameter[str],
    code: Parameter[str],
    beam_pipeline: BeamComponentParameter[beam.Pipeline] = None,
) -> None:
    """Reads items or users, and drops bad rows and duplicates.

    Args:
        examples: Parquet examples of one split: the id, the title of items, and the
            columns of the features, see docs/features.md.
        dead_letters: The bad rows, and the counts of all.
        config: `EntitySource` as canonical JSON, one side of it.
        files_digest: Digest of the files' contents.
        code: Fingerprint of the code.
        beam_pipeline: Runs the work.
    """
    del files_digest, code
    source = EntitySource.model_validate_json(config)
    for what, entities in (("items", source.items), ("users", source.users)):
        if entities is not None:
            folders = examples.uri, dead_letters.uri
            landed = Path(dead_letters.uri) / LANDED_FOLDER
            entities = pin_source(what, entities, landed, source.forget)
            ingest_entities(what, entities, *folders, beam_pipeline, source.forget)
    set_parquet_splits(examples, [SPLIT])


@component
def VocabularyGen(
    interactions: InputArtifact[Examples],
    verdict: InputArtifact[Verdict],
    vocabularies: OutputArtifact[Vocabularies],
    config: Parameter[str],
    code: Parameter[str],
    items: InputArtifact[Examples] = None,
    users: InputArtifact[Examples] = None,
    previous: InputArtifact[Vocabularies] = None,
) -> None:
    """Assigns rows to users and items; known ids keep their rows.

    Args:
        interactions: Examples; rows come only from the split `train`.
        verdict: The DataGate's verdict, required for a training.
        vocabularies: `users.parquet`, `items.parquet`, `diff.json` with the changes, and
            `event_features/` if events have features.
        config: `VocabularySource` as canonical JSON.
        code: Fingerprint of the code.
        items: Examples of the catalogue; all its items get a row.
        users: Examples of the users' data; all users get a row.
        previous: The vocabularies to extend.
    """
    del verdict, code
    source = VocabularySource.model_validate_json(config)
    before, out = None if previous is None else Path(previous.uri), Path(vocabularies.uri)
    make_vocabularies(
        interactions=Path(interactions.uri),
        cut=interactions.get_int_custom_property(CUT_PROPERTY),
        entities={
            name: Path(examples.uri) / f"Split-{SPLIT}"
            for name, examples in existing(users=users, items=items).items()
        },
        previous=before,
        out=out,
        config=source.vocabulary,
        split=split_of(interactions),
    )
    earlier = before and before / event_features.FOLDER
    learned = out / event_features.FOLDER
    learn_event_features(Path(interactions.uri), source.interactions, earlier, learned)


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
        vocabularies: Rows of users and items, and what features of events learned.
        data: The data folder, see docs/folders.md.
        config: `EntitySource` as canonical JSON.
        code: Fingerprint of the code.
        items: Examples of the catalogue, if there is one.
        item_tokens: Token rows of the items, if they have features.
        item_graph: The Transform graph that made them.
        user_tokens: Token rows of the users, if they have features.
        user_graph: The Transform graph that made them.
    """
    del code
    folder, learned = Path(data.uri), Path(vocabularies.uri) / event_features.FOLDER
    of_ids = shutil.ignore_patterns(event_features.FOLDER)
    shutil.copytree(vocabularies.uri, folder / "vocabulary", ignore=of_ids, dirs_exist_ok=True)
    if learned.exists():
        shutil.copytree(learned, folder / event_features.FOLDER, dirs_exist_ok=True)
    sources = EntitySource.model_validate_json(config)
    build_store(
        examples=Path(interactions.uri),
        vocabularies=Path(vocabularies.uri),
        cut=interactions.get_int_custom_property(CUT_PROPERTY),
        store=folder / "store",
        split=split_of(interactions),
        features=event_features.load_event_features(learned),
        label_after_s=sources.label_after_s,
    )
    made = {"items": (item_tokens, item_graph), "users": (user_tokens, user_graph)}
    tokens = {
        what: Transformed(Path(rows.uri), Path(graph.uri))
        for what, (rows, graph) in made.items()
        if rows is not None and graph is not None
    }
    catalogue = None if items is None else Path(items.uri)
    write_entities(folder, sources.items, sources.users, catalogue, tokens)
    write_statistics(folder, sources.label_after_s)
    seal_inputs(folder)

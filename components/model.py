"""The components that train, evaluate, export, push and report a model."""

import json
import tempfile
from pathlib import Path

from absl import logging
from pydantic import PositiveInt
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import (
    Model,
    ModelBlessing,
    ModelEvaluation,
    PushedModel,
    TransformGraph,
)

from components.artifacts import (
    DeadLetters,
    InteractionData,
    Report,
    ServingBundle,
    Verdict,
    Vocabularies,
    existing,
)
from components.metadata import CURRENT_MODEL, DESTINATION, SECOND_STAGE, WITHDRAWN
from recsys.bundles.description import describe_source
from recsys.bundles.publishing import WithdrawnError, publish
from recsys.config import Strict
from recsys.distributed.launchers import run_launched
from recsys.report.run_report import write_report
from recsys.system.process import run_stage_with_config


@component
def Trainer(
    data: InputArtifact[InteractionData],
    verdict: InputArtifact[Verdict],
    model: OutputArtifact[Model],
    config: Parameter[str],
    checkpoints: Parameter[str],
    code: Parameter[str],
    base: InputArtifact[Model] = None,
) -> None:
    """Trains the model, and resumes from the last checkpoint of an earlier attempt.

    Args:
        data: The data folder.
        verdict: The DataGate's verdict, required for a training.
        model: The model folder, see docs/folders.md.
        config: `TrainStage` as canonical JSON.
        checkpoints: Folder of the checkpoints, outside of the execution's outputs, which a restart
            doesn't find again.
        code: Fingerprint of the code.
        base: The model of a warm start, if there is one.
    """
    del verdict, code
    folders = ["--data", data.uri, "--out", model.uri, "--checkpoints", checkpoints]
    if base is not None:
        folders += ["--base", base.uri]
    run_launched("recsys.stages.train", config, folders)


@component
def RankTrainer(
    model: InputArtifact[Model],
    data: InputArtifact[InteractionData],
    verdict: InputArtifact[Verdict],
    pair: OutputArtifact[Model],
    config: Parameter[str],
    checkpoints: Parameter[str],
    code: Parameter[str],
    base: InputArtifact[Model] = None,
) -> None:
    """Trains the ranker of a pair, and joins it with its retriever.

    Args:
        model: The model folder of the retriever.
        data: The data folder.
        verdict: The DataGate's verdict, required for a training.
        pair: The folder of the pair, see docs/folders.md.
        config: `PairStage` as canonical JSON.
        checkpoints: Folder of the checkpoints, as of the Trainer.
        code: Fingerprint of the code.
        base: The pair of a warm start, if there is one.
    """
    del verdict, code
    folders = ["--data", data.uri, "--retriever", model.uri, "--out", pair.uri]
    folders += ["--checkpoints", checkpoints]
    if base is not None:
        folders += ["--base", base.uri]
    run_launched("recsys.stages.train", config, folders)


@component
def RetrievalEvaluator(
    model: InputArtifact[Model],
    data: InputArtifact[InteractionData],
    evaluation: OutputArtifact[ModelEvaluation],
    blessing: OutputArtifact[ModelBlessing],
    config: Parameter[str],
    code: Parameter[str],
    blessed_model: InputArtifact[Model] = None,
    blessed: InputArtifact[ModelBlessing] = None,
) -> None:
    """Evaluates the model over the whole catalogue, and compares it with the thresholds.

    Args:
        model: The model just trained.
        data: The data folder.
        evaluation: `evaluation.json`, see docs/folders.md.
        blessing: The verdict, in the form of TFX's Evaluator.
        config: `EvaluateStage` as canonical JSON.
        code: Fingerprint of the code.
        blessed_model: The last blessed model, if there is one.
        blessed: Its blessing, which says whether a pair is served without its ranker.
    """
    del code
    arguments = ["--model", model.uri, "--data", data.uri, "--out", evaluation.uri]
    if blessed_model is not None:
        arguments += ["--blessed", blessed_model.uri]
        state = "" if blessed is None else blessed.get_string_custom_property(SECOND_STAGE)
        arguments += ["--blessed-second-stage", state] if state else []
    run_launched("recsys.stages.evaluate", config, arguments)
    result = json.loads((Path(evaluation.uri) / "evaluation.json").read_text())
    is_blessed = result["verdict"]["blessed"]
    # The file and the properties that TFX's components read.
    (Path(blessing.uri) / ("BLESSED" if is_blessed else "NOT_BLESSED")).touch()
    blessing.set_int_custom_property("blessed", int(is_blessed))
    blessing.set_string_custom_property("current_model", model.uri)
    blessing.set_int_custom_property(CURRENT_MODEL, model.id)
    if "pair" in result:
        blessing.set_string_custom_property(SECOND_STAGE, result["pair"]["second_stage"])
    if blessed_model is not None:
        blessing.set_string_custom_property("baseline_model", blessed_model.uri)
        blessing.set_int_custom_property("baseline_model_id", blessed_model.id)


@component
def Exporter(
    model: InputArtifact[Model],
    data: InputArtifact[InteractionData],
    evaluation: InputArtifact[ModelEvaluation],
    bundle: OutputArtifact[ServingBundle],
    config: Parameter[str],
    code: Parameter[str],
    item_graph: InputArtifact[TransformGraph] = None,
    user_graph: InputArtifact[TransformGraph] = None,
    interactions_letters: InputArtifact[DeadLetters] = None,
    items_letters: InputArtifact[DeadLetters] = None,
    users_letters: InputArtifact[DeadLetters] = None,
    interactions_digest: Parameter[str] = "",
    items_digest: Parameter[str] = "",
    users_digest: Parameter[str] = "",
) -> None:
    """Writes the bundle that serves a model.

    Args:
        model: The model.
        data: The data folder, with the users' histories.
        evaluation: The evaluation, for the model card.
        bundle: The bundle, see docs/folders.md.
        config: `ExportStage` as canonical JSON.
        code: Fingerprint of the code.
        item_graph: Transform graph of the items' features, if there are any.
        user_graph: The same for users.
        interactions_letters: Dead letters of the interactions, for the manifest's counts and files.
        items_letters: The same of the items.
        users_letters: The same of the users.
        interactions_digest: Digest of the files of the interactions.
        items_digest: The same of the items.
        users_digest: The same of the users.
    """
    del code
    arguments = ["--model", model.uri, "--data", data.uri]
    arguments += ["--evaluation", evaluation.uri, "--out", bundle.uri]
    for option, graph in (("--transform", item_graph), ("--user-transform", user_graph)):
        if graph is not None:
            arguments += [option, graph.uri]
    sources = {
        "interactions": (interactions_letters, interactions_digest),
        "items": (items_letters, items_digest),
        "users": (users_letters, users_digest),
    }
    data = {
        what: describe_source(Path(letters.uri), digest)
        for what, (letters, digest) in sources.items()
        if letters is not None
    }
    with tempfile.TemporaryDirectory(prefix="recsys-export-") as folder:
        file = Path(folder) / "data.json"
        file.write_text(json.dumps(data), encoding="utf-8")
        arguments += ["--data-origin", str(file)] if data else []
        run_stage_with_config("recsys.stages.export", config, arguments, backend="tensorflow")


class PushTarget(Strict):
    """The part of the config on the serving folder."""

    serving_root: str
    """Folder of the versions of one model."""
    keep: PositiveInt
    """Number of newest versions to keep."""


@component
def Pusher(
    bundle: InputArtifact[ServingBundle],
    blessing: InputArtifact[ModelBlessing],
    pushed: OutputArtifact[PushedModel],
    config: Parameter[str],
    code: Parameter[str],
) -> None:
    """Publishes a blessed bundle; otherwise the served version stays.

    A bundle that was rolled back is not published again, so the next run doesn't undo a rollback.

    Args:
        bundle: The bundle.
        blessing: The evaluator's verdict.
        pushed: `pushed.json`, with the reason if nothing was pushed, and the properties of TFX's
            Pusher.
        config: `PushTarget` as canonical JSON.
        code: Fingerprint of the code.
    """
    del code
    target = PushTarget.model_validate_json(config)
    destination, reason = None, None
    if blessing.get_int_custom_property("blessed") == 1:
        try:
            destination = publish(Path(bundle.uri), Path(target.serving_root), target.keep)
        except WithdrawnError as error:
            reason = str(error)
            pushed.set_int_custom_property(WITHDRAWN, 1)
    else:
        reason = "The model was not blessed."
    if destination is None:
        logging.warning("Nothing is pushed. %s", reason)
    else:
        pushed.set_string_custom_property(DESTINATION, str(destination))
        pushed.set_string_custom_property("pushed_version", destination.name)
        model = blessing.get_int_custom_property(CURRENT_MODEL)
        pushed.set_int_custom_property(CURRENT_MODEL, model)
    pushed.set_int_custom_property("pushed", int(destination is not None))
    content = {"destination": None if destination is None else str(destination), "reason": reason}
    (Path(pushed.uri) / "pushed.json").write_text(json.dumps(content) + "\n", encoding="utf-8")


@component
def Reporter(
    interaction_letters: InputArtifact[DeadLetters],
    verdict: InputArtifact[Verdict],
    vocabularies: InputArtifact[Vocabularies],
    data: InputArtifact[InteractionData],
    model: InputArtifact[Model],
    evaluation: InputArtifact[ModelEvaluation],
    bundle: InputArtifact[ServingBundle],
    pushed: InputArtifact[PushedModel],
    report: OutputArtifact[Report],
    config: Parameter[str],
    records: Parameter[str],
    run_id: Parameter[str],
    code: Parameter[str],
    item_letters: InputArtifact[DeadLetters] = None,
    user_letters: InputArtifact[DeadLetters] = None,
) -> None:
    """Writes `report.html`, and TFDV's pages beside it.

    It is never cached, because it describes its run: what ran, what was cached, and why.

    Args:
        interaction_letters: Dead letters of the interactions.
        verdict: The DataGate's verdict.
        vocabularies: The vocabularies, with their changes.
        data: The data folder.
        model: The model.
        evaluation: The evaluation.
        bundle: The bundle.
        pushed: The push.
        report: The report.
        config: The whole config as canonical JSON.
        records: Folder of our runner's records (`recsys.report.runs`).
        run_id: Unique id of this run, the name of its record.
        code: Fingerprint of the code.
        item_letters: Dead letters of the catalogue, if there is one.
        user_letters: Dead letters of the users' features, if there are any.
    """
    del code
    letters = existing(interactions=interaction_letters, items=item_letters, users=user_letters)
    push = json.loads((Path(pushed.uri) / "pushed.json").read_text())
    write_report(
        Path(report.uri),
        config=json.loads(config),
        dead_letters={what: Path(artifact.uri) for what, artifact in letters.items()},
        data=Path(data.uri),
        model=Path(model.uri),
        evaluation=Path(evaluation.uri),
        bundle=Path(bundle.uri),
        pushed=push["destination"],
        not_pushed=push.get("reason"),
        validation=Path(verdict.uri),
        vocabularies=Path(vocabularies.uri),
        record=Path(records) / run_id,
    )

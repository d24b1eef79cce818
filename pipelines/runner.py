"""The runner: TFX's LocalDagRunner, one run at a time, that says what it does and why."""

from __future__ import annotations

import dataclasses
import time
import traceback
from pathlib import Path
from typing import Any

from absl import logging
from ml_metadata.proto.metadata_store_pb2 import Execution
from tfx.dsl.compiler import constants
from tfx.orchestration import metadata
from tfx.orchestration.local import local_dag_runner, runner_utils
from tfx.orchestration.portable import inputs_utils, launcher, runtime_parameter_utils
from tfx.proto.orchestration import pipeline_pb2

from components.pusher import DESTINATION, WITHDRAWN
from pipelines.failure import as_recsys_error
from pipelines.history import History
from pipelines.lock import run_lock
from pipelines.record import Recorder, new_run_id
from pipelines.summary import summarize, told
from recsys import events
from recsys.bundle import versions
from recsys.errors import RecsysError

_PUSHER, _REPORTER = "Pusher", "Reporter"
_RESOLVERS = ("LatestBlessed", "EarlierStatistics", "PreviousVocabularies")


@dataclasses.dataclass(frozen=True)
class _Run:
    """What the steps of one run have in common."""

    pipeline: pipeline_pb2.Pipeline
    deployment: Any
    connection: metadata.Metadata
    recorder: Recorder

    @property
    def name(self) -> str:
        """Name of the pipeline."""
        return str(self.pipeline.pipeline_info.id)


class Runner(local_dag_runner.LocalDagRunner):
    """Runs a pipeline step by step, and emits `recsys.events`.

    Args:
        root: Folder of everything that the run writes.
        serving: Folder of the served versions.
    """

    def __init__(self, root: Path, serving: Path) -> None:
        super().__init__()
        self._root = root
        self._serving = serving
        self.step: str | None = None
        """The step that runs, or the last one that did."""

    def run_with_ir(
        self,
        pipeline: pipeline_pb2.Pipeline,
        run_options: pipeline_pb2.RunOptions | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Runs the compiled pipeline.

        Returns:
            The summary, as the event `finished` has it.

        Raises:
            RecsysError: A step failed, or another run holds the root.
        """
        del run_options, kwargs
        with run_lock(self._root):
            return self._run_steps(pipeline)

    def _run_steps(self, pipeline: pipeline_pb2.Pipeline) -> dict[str, Any]:
        run = self._start(pipeline)
        ended: dict[str, int] = {}
        try:
            for node in pipeline.nodes:
                step = node.pipeline_node
                ended[step.node_info.id] = self._run_step(step, run)
        except RecsysError as error:
            self._finish(ended, run, error)
            raise
        return self._finish(ended, run)

    def _start(self, pipeline: pipeline_pb2.Pipeline) -> _Run:
        """Gives the run its id, tells of it, and clears up after one that was killed."""
        run_id, name = new_run_id(), pipeline.pipeline_info.id
        runtime_parameter_utils.substitute_runtime_parameter(
            pipeline, {constants.PIPELINE_RUN_ID_PARAMETER_NAME: run_id}
        )
        deployment = runner_utils.extract_local_deployment_config(pipeline)
        database = deployment.metadata_connection_config
        connection = metadata.Metadata(getattr(database, database.WhichOneof("connection_config")))
        steps = [node.pipeline_node.node_info.id for node in pipeline.nodes]
        events.emit("run_started", steps=steps, root=str(self._root), name=name)
        recorder = Recorder(self._root, run_id, name)
        recorder.start(steps)
        with connection as handle:
            n_dead = History(handle.store, name).sweep()
        if n_dead:
            logging.warning("%d executions of a killed run were marked as failed.", n_dead)
        return _Run(pipeline, deployment, connection, recorder)

    def _finish(
        self, ended: dict[str, int], run: _Run, error: RecsysError | None = None
    ) -> dict[str, Any]:
        """Writes the record of the run; returns the summary of one that ended well."""
        with run.connection as handle:
            history = History(handle.store, run.name)
            executions = {step: history.execution(id_) for step, id_ in ended.items()}
            index = run.recorder.end(
                lambda: told(executions, history, self._root), error, self.step
            )
            if error is not None:
                return {}
            return {**summarize(executions, history), "index": index and str(index)}

    def _run_step(self, node: pipeline_pb2.PipelineNode, run: _Run) -> int:
        """Runs a step and returns the id of its execution."""
        step = node.node_info.id
        started = time.monotonic()
        self.step = step
        events.emit("step_started", step=step)
        try:
            if step == _PUSHER and not self._is_served(node, run.name, run.connection):
                node.execution_options.caching_options.enable_cache = False
            info = launcher.Launcher(
                pipeline_node=node,
                mlmd_connection=run.connection,
                pipeline_info=run.pipeline.pipeline_info,
                pipeline_runtime_spec=run.pipeline.runtime_spec,
                executor_spec=runner_utils.extract_executor_spec(run.deployment, step),
                custom_driver_spec=runner_utils.extract_custom_driver_spec(run.deployment, step),
            ).launch()
            state, reason = _outcome(node, run.name, info.execution_id, run.connection)
        except Exception as error:
            seconds = time.monotonic() - started
            traceback.print_exc()
            ours = as_recsys_error(error, step)
            _tell(run, step, "failed", str(ours), seconds)
            raise ours from error
        _tell(run, step, state, reason, time.monotonic() - started)
        logging.info("%s %s: %s", step, state, reason)
        return info.execution_id

    def _is_served(
        self, node: pipeline_pb2.PipelineNode, name: str, connection: metadata.Metadata
    ) -> bool:
        """Returns whether the last push is what is served, and is what this run pushes.

        Otherwise a cached push would name a version that is gone, or an old one.
        """
        with connection as handle:
            history = History(handle.store, name)
            last = history.last_good(_PUSHER)
            if last is None:
                return True
            resolved = inputs_utils.resolve_input_artifacts(
                pipeline_node=node, metadata_handle=handle
            )
            now = {key: tuple(one.id for one in some) for key, some in resolved[0].items()}
            found = history.output(last, "pushed").custom_properties
            pushed, withdrawn = found[DESTINATION].string_value, found[WITHDRAWN].int_value
            same = now == history.inputs(last).artifacts
        if not pushed:
            # What was rolled back may have been brought back since.
            return same and not withdrawn
        return same and [Path(pushed)] == versions(self._serving)[-1:]


def _tell(run: _Run, step: str, state: str, reason: str, seconds: float) -> None:
    """Tells whoever watches, and the record, that a step has ended."""
    events.emit("step_finished", step=step, state=state, reason=reason, seconds=seconds)
    run.recorder.step(step, state, reason, seconds)


def _outcome(
    node: pipeline_pb2.PipelineNode, name: str, execution_id: int, connection: metadata.Metadata
) -> tuple[str, str]:
    """Returns the state of an execution that did not raise, and the reason for it."""
    step = node.node_info.id
    with connection as handle:
        history = History(handle.store, name)
        execution = history.execution(execution_id)
        state = execution.last_known_state
        if state == Execution.FAILED:
            raise RuntimeError(f"The inputs of {step} could not be resolved.")
        if step.split(".")[0] in _RESOLVERS:
            return "ran", "it looks again in every run"
        if step == _REPORTER:
            return "ran", "each run has a report of its own"
        reason = history.why(step, execution, _producers(node))
    return ("cached" if state == Execution.CACHED else "ran"), reason


def _producers(node: pipeline_pb2.PipelineNode) -> dict[str, str]:
    """Returns the name of the step that makes each input of `node`."""
    return {
        key: spec.channels[0].producer_node_query.id
        for key, spec in node.inputs.inputs.items()
        if spec.channels
    }

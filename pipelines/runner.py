"""The runner: TFX's LocalDagRunner, one run at a time, that says what it does and why."""

from __future__ import annotations

import datetime as dt
import errno
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

from components.pusher import DESTINATION
from pipelines.history import History
from pipelines.lock import run_lock
from pipelines.summary import summarize
from recsys import events
from recsys.bundle import versions
from recsys.errors import RecsysError
from recsys.process import storage_error

_PUSHER = "Pusher"
_RESOLVERS = ("LatestBlessed", "EarlierStatistics", "PreviousVocabularies")
_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO}


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
        runtime_parameter_utils.substitute_runtime_parameter(
            pipeline,
            {constants.PIPELINE_RUN_ID_PARAMETER_NAME: dt.datetime.now().isoformat()},
        )
        deployment = runner_utils.extract_local_deployment_config(pipeline)
        database = deployment.metadata_connection_config
        connection = metadata.Metadata(getattr(database, database.WhichOneof("connection_config")))
        nodes = [node.pipeline_node for node in pipeline.nodes]
        names = [node.node_info.id for node in nodes]
        events.emit(
            "run_started", steps=names, root=str(self._root), name=pipeline.pipeline_info.id
        )
        with connection as handle:
            n_dead = History(handle.store, pipeline.pipeline_info.id).sweep()
        if n_dead:
            logging.warning("%d executions of a killed run were marked as failed.", n_dead)
        ended: dict[str, int] = {}
        for node in nodes:
            ended[node.node_info.id] = self._run_step(node, pipeline, deployment, connection)
        with connection as handle:
            history = History(handle.store, pipeline.pipeline_info.id)
            return summarize({name: history.execution(id_) for name, id_ in ended.items()}, history)

    def _run_step(
        self,
        node: pipeline_pb2.PipelineNode,
        pipeline: pipeline_pb2.Pipeline,
        deployment: Any,
        connection: metadata.Metadata,
    ) -> int:
        """Runs a step and returns the id of its execution."""
        step, name = node.node_info.id, pipeline.pipeline_info.id
        started = time.monotonic()
        self.step = step
        events.emit("step_started", step=step)
        try:
            if step == _PUSHER and not self._is_served(node, name, connection):
                node.execution_options.caching_options.enable_cache = False
            info = launcher.Launcher(
                pipeline_node=node,
                mlmd_connection=connection,
                pipeline_info=pipeline.pipeline_info,
                pipeline_runtime_spec=pipeline.runtime_spec,
                executor_spec=runner_utils.extract_executor_spec(deployment, step),
                custom_driver_spec=runner_utils.extract_custom_driver_spec(deployment, step),
            ).launch()
            state, reason = _outcome(node, name, info.execution_id, connection)
        except Exception as error:
            seconds = time.monotonic() - started
            traceback.print_exc()
            ours = as_recsys_error(error, step)
            events.emit(
                "step_finished", step=step, state="failed", reason=str(ours), seconds=seconds
            )
            raise ours from error
        events.emit(
            "step_finished",
            step=step,
            state=state,
            reason=reason,
            seconds=time.monotonic() - started,
        )
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
            pushed = history.output(last, "pushed").custom_properties[DESTINATION].string_value
            same = now == history.inputs(last).artifacts
        return same and (not pushed or [Path(pushed)] == versions(self._serving)[-1:])


def as_recsys_error(error: BaseException, step: str) -> RecsysError:
    """Returns the `RecsysError` that caused `error`, or one that says that `step` failed."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, RecsysError):
            return cause
        if isinstance(cause, OSError) and cause.errno in _STORAGE:
            return storage_error(cause)
        cause = cause.__cause__ or cause.__context__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return RecsysError(
        "R600",
        f"The step {step} failed.",
        "The run's log holds the whole story; if the data is in order, report it.",
        f"{type(error).__name__}: {lines[-1] if lines else ''}",
    )


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
        reason = history.why(step, execution, _producers(node))
    return ("cached" if state == Execution.CACHED else "ran"), reason


def _producers(node: pipeline_pb2.PipelineNode) -> dict[str, str]:
    """Returns the name of the step that makes each input of `node`."""
    return {
        key: spec.channels[0].producer_node_query.id
        for key, spec in node.inputs.inputs.items()
        if spec.channels
    }

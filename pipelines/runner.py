"""The runner: TFX's LocalDagRunner, one run at a time, that says what it does and why."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import logging
from ml_metadata.proto import metadata_store_pb2
from ml_metadata.proto.metadata_store_pb2 import Execution
from tfx.dsl.compiler import constants
from tfx.orchestration import metadata
from tfx.orchestration.local import local_dag_runner, runner_utils
from tfx.orchestration.portable import inputs_utils, launcher, runtime_parameter_utils
from tfx.proto.orchestration import pipeline_pb2

from components.pusher import DESTINATION, WITHDRAWN
from pipelines.history import History
from pipelines.metadata_store import claim_name
from pipelines.recovery import cancel, clear_up
from pipelines.run_errors import as_recsys_error, stopped_error
from pipelines.run_record import Recorder, new_run_id, steps_record, summarize
from recsys.bundles.versions import versions
from recsys.errors import RecsysError
from recsys.runs.lock import RunLock, run_lock
from recsys.system import events
from recsys.system.process import log_traceback
from recsys.system.signals import SIGNALS, StoppedError, raise_if_asked, signals_raised

_PUSHER, _REPORTER = "Pusher", "Reporter"
_RESOLVERS = ("LatestBlessed", "EarlierStatistics", "PreviousVocabularies", "WarmBase")


@dataclasses.dataclass(frozen=True)
class _Run:
    """What the steps of one run have in common."""

    pipeline: pipeline_pb2.Pipeline
    deployment: Any
    connection: metadata.Metadata
    recorder: Recorder
    lock: RunLock

    @property
    def name(self) -> str:
        """Name of the pipeline."""
        return str(self.pipeline.pipeline_info.id)


class _Launcher(launcher.Launcher):
    """Publishes nothing any more once the lock is lost."""

    lock: RunLock

    def _publish_successful_execution(self, *args: Any, **kwargs: Any) -> None:
        self.lock.check()
        super()._publish_successful_execution(*args, **kwargs)


class Runner(local_dag_runner.LocalDagRunner):
    """Runs a pipeline step by step, and emits `recsys.system.events`.

    Args:
        root: Folder of everything that the run writes.
        serving: Folder of the served versions.
        database: Where ML Metadata is kept, with a password if it needs one; None: as
            the pipeline has it.
        tell_killed: Is given the ids of the runs that were found killed, if there are any.
    """

    def __init__(
        self,
        root: Path,
        serving: Path,
        database: metadata_store_pb2.ConnectionConfig | None = None,
        tell_killed: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        super().__init__()
        self._root = root
        self._serving = serving
        self._database = database
        self._tell_killed = tell_killed
        self.step: str | None = None
        """The step that runs, or the last one that did."""
        self.run_id: str | None = None
        """Id of the run, once it has one."""

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
            StoppedError: Somebody asked the run to stop, and it has.
        """
        del run_options, kwargs
        with run_lock(self._root) as lock, _stop_signals_raised():
            _tell_taken_over(lock)
            try:
                run = self._start(pipeline, lock)
            except Exception as error:
                log_traceback()
                raise as_recsys_error(error, "start", self._root) from error
            return self._run_steps(run)

    def _run_steps(self, run: _Run) -> dict[str, Any]:
        ended: dict[str, int] = {}
        try:
            for node in run.pipeline.nodes:
                run.lock.check()
                raise_if_asked()
                step = node.pipeline_node
                ended[step.node_info.id] = self._run_step(step, run)
        except RecsysError as error:
            self._finish(ended, run, error)
            raise
        except StoppedError as stopped:
            for signum in SIGNALS:  # It is ending; a second wish changes nothing.
                signal.signal(signum, signal.SIG_IGN)
            run.lock.check()
            self._stop(ended, run, stopped)
            raise
        try:
            return self._finish(ended, run)
        except Exception as error:
            log_traceback()
            raise as_recsys_error(error, "end", self._root) from error

    def _stop(self, ended: dict[str, int], run: _Run, stopped: StoppedError) -> None:
        """Records a run that was asked to stop."""
        with contextlib.suppress(Exception), run.connection as handle:
            cancel(handle.store, run.name)
        self._finish(ended, run, stopped_error(stopped, self.step), "stopped")

    def _start(self, pipeline: pipeline_pb2.Pipeline, lock: RunLock) -> _Run:
        """Gives the run its id, tells of it, and clears up after one that was killed."""
        run_id, name = new_run_id(), pipeline.pipeline_info.id
        self.run_id = run_id
        runtime_parameter_utils.substitute_runtime_parameter(
            pipeline, {constants.PIPELINE_RUN_ID_PARAMETER_NAME: run_id}
        )
        deployment = runner_utils.extract_local_deployment_config(pipeline)
        connection = self._connection(deployment, name)
        steps = [node.pipeline_node.node_info.id for node in pipeline.nodes]
        events.emit("run_started", steps=steps, root=str(self._root), name=name, run=run_id)
        with connection as handle:
            # In a database that roots share, ours is what has our name.
            own = name if connection.connection_config.HasField("mysql") else None
            cleared = clear_up(self._root, self._serving, handle.store, own)
        if cleared:
            events.emit("note", step=steps[0], text=cleared.text())
        if cleared.runs and self._tell_killed:
            self._tell_killed(cleared.runs)
        recorder = Recorder(self._root, run_id, name)
        recorder.start(steps)
        return _Run(pipeline, deployment, connection, recorder, lock)

    def _connection(self, deployment: Any, name: str) -> metadata.Metadata:
        """Returns the connection that was given, or the compiled one; `name` is ours there."""
        compiled = deployment.metadata_connection_config
        kind = compiled.WhichOneof("connection_config")
        connection = metadata.Metadata(self._database or getattr(compiled, kind))
        if connection.connection_config.HasField("mysql"):
            with connection as handle:
                claim_name(handle.store, name, self._root)
        return connection

    def _finish(
        self,
        ended: dict[str, int],
        run: _Run,
        error: RecsysError | None = None,
        state: str = "failed",
    ) -> dict[str, Any]:
        """Writes the record of the run; returns the summary of one that ended well."""
        if error is not None:
            run.recorder.end(lambda: self._record(ended, run), error, self.step, state)
            return {}
        index = run.recorder.end(lambda: self._record(ended, run))
        with run.connection as handle:
            history = History(handle.store, run.name)
            executions = {step: history.execution(id_) for step, id_ in ended.items()}
            return {**summarize(executions, history), "index": index and str(index)}

    def _record(self, ended: dict[str, int], run: _Run) -> dict[str, Any]:
        """Returns what the record holds of the steps that ended well."""
        with run.connection as handle:
            history = History(handle.store, run.name)
            executions = {step: history.execution(id_) for step, id_ in ended.items()}
            return steps_record(executions, history, self._root)

    def _run_step(self, node: pipeline_pb2.PipelineNode, run: _Run) -> int:
        """Runs a step and returns the id of its execution."""
        step = node.node_info.id
        started = time.monotonic()
        self.step = step
        events.emit("step_started", step=step)
        try:
            if step == _PUSHER and not self._is_served(node, run.name, run.connection):
                node.execution_options.caching_options.enable_cache = False
            launched = _Launcher(
                pipeline_node=node,
                mlmd_connection=run.connection,
                pipeline_info=run.pipeline.pipeline_info,
                pipeline_runtime_spec=run.pipeline.runtime_spec,
                executor_spec=runner_utils.extract_executor_spec(run.deployment, step),
                custom_driver_spec=runner_utils.extract_custom_driver_spec(run.deployment, step),
            )
            launched.lock = run.lock
            info = launched.launch()
            state, reason = _outcome(node, run.name, info.execution_id, run.connection)
        except Exception as error:
            seconds = time.monotonic() - started
            log_traceback()
            ours = as_recsys_error(error, step, self._root)
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
            now = {
                key: tuple(artifact.id for artifact in some) for key, some in resolved[0].items()
            }
            properties = history.output(last, "pushed").custom_properties
            pushed, withdrawn = (
                properties[DESTINATION].string_value,
                properties[WITHDRAWN].int_value,
            )
            same = now == history.inputs(last).artifacts
        if not pushed:
            # What was rolled back may have been brought back since.
            return same and not withdrawn
        return same and [Path(pushed)] == versions(self._serving)[-1:]


@contextlib.contextmanager
def _stop_signals_raised() -> Iterator[None]:
    """Raises `StoppedError` in the main thread, which alone hears signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with signals_raised():
        yield


def _tell_taken_over(lock: RunLock) -> None:
    if lock.taken_over is not None:
        logging.warning("The lock was taken over from %s.", lock.taken_over.described())


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

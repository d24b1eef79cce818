"""The runner: TFX's LocalDagRunner, one run at a time, which reports each step and its reason."""

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

from components.metadata import DESTINATION, WITHDRAWN
from pipelines.clean import cancel, clean_up
from pipelines.metadata_store import check_root, claim_name
from pipelines.run_record import (
    History,
    Outputs,
    Recorder,
    as_recsys_error,
    new_run_id,
    stopped_error,
)
from recsys.bundles.publishing import versions
from recsys.errors import RecsysError
from recsys.forget.files import is_unfinished
from recsys.system import events
from recsys.system.process import (
    SIGNALS,
    StoppedError,
    log_traceback,
    raise_if_stopped,
    signals_raised,
)
from recsys.system.run_lock import RunLock, run_lock

_RESOLVERS = ("LatestBlessed", "EarlierStatistics", "PreviousVocabularies", "WarmBase")
_ALWAYS_RUN = dict.fromkeys(_RESOLVERS, "it runs every time")
_ALWAYS_RUN["Reporter"] = "each run has its report"


@dataclasses.dataclass(frozen=True)
class Run:
    """The common state of the steps of one run."""

    pipeline: pipeline_pb2.Pipeline
    deployment: Any
    connection: metadata.Metadata
    recorder: Recorder
    lock: RunLock
    ended: dict[str, int] = dataclasses.field(default_factory=dict)
    """Id of the execution of each step that ended well."""

    @property
    def name(self) -> str:
        """Name of the pipeline."""
        return str(self.pipeline.pipeline_info.id)


class _Launcher(launcher.Launcher):
    """A launcher that doesn't publish once the lock is lost."""

    lock: RunLock

    def _publish_successful_execution(self, *args: Any, **kwargs: Any) -> None:
        self.lock.check()
        super()._publish_successful_execution(*args, **kwargs)


class Runner(local_dag_runner.LocalDagRunner):
    """Runs a pipeline step by step, and emits `recsys.system.events`.

    Args:
        root: Output folder of the runs.
        serving: Folder of the served versions.
        database: Connection to ML Metadata, including a password; None: the pipeline's.
        report_killed: Called with the ids of killed runs.
        commit: Called after each step that ran; writes the root to its bucket, if it has one.
    """

    def __init__(
        self,
        root: Path,
        serving: Path,
        database: metadata_store_pb2.ConnectionConfig | None = None,
        report_killed: Callable[[Sequence[str]], None] = lambda run_ids: None,
        commit: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._root, self._serving = root, serving
        self._database, self._report_killed, self._commit = database, report_killed, commit
        self.step: str | None = None
        """The current or last step."""
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
            The summary of the event `finished`.

        Raises:
            RecsysError: A step failed, or another run holds the root.
            StoppedError: A signal stopped the run.
        """
        del run_options, kwargs
        with run_lock(self._root) as lock, _stop_signals_raised():
            if lock.taken_over is not None:
                logging.warning("The lock was taken over from %s.", lock.taken_over.described())
            with self._explained("start"):
                run = self._start(pipeline, lock)
            return self._run_steps(run)

    @contextlib.contextmanager
    def _explained(self, step: str) -> Iterator[None]:
        """Makes a RecsysError of any other error."""
        try:
            yield
        except Exception as error:
            log_traceback()
            raise as_recsys_error(error, step, self._root) from error

    def _run_steps(self, run: Run) -> dict[str, Any]:
        try:
            for node in run.pipeline.nodes:
                run.lock.check()
                raise_if_stopped()
                step = node.pipeline_node
                run.ended[step.node_info.id] = self._run_step(step, run)
        except RecsysError as error:
            run.recorder.end(lambda: self._record(run), error, self.step)
            raise
        except StoppedError as stopped:
            for signum in SIGNALS:  # It is already ending.
                signal.signal(signum, signal.SIG_IGN)
            run.lock.check()
            with contextlib.suppress(Exception), run.connection as handle:
                cancel(handle.store, run.name)
            reason = stopped_error(stopped, self.step)
            run.recorder.end(lambda: self._record(run), reason, self.step, "stopped")
            raise
        with self._explained("end"):
            index = run.recorder.end(lambda: self._record(run))
            with run.connection as handle:
                outputs = Outputs(History(handle.store, run.name), run.ended)
                return {**outputs.summary(), "index": index and str(index)}

    def _record(self, run: Run) -> dict[str, Any]:
        with run.connection as handle:
            return Outputs(History(handle.store, run.name), run.ended).record(self._root)

    def _start(self, pipeline: pipeline_pb2.Pipeline, lock: RunLock) -> Run:
        """Gives the run its id, and cleans up after killed runs."""
        self.run_id, name = new_run_id(), pipeline.pipeline_info.id
        runtime_parameter_utils.substitute_runtime_parameter(
            pipeline, {constants.PIPELINE_RUN_ID_PARAMETER_NAME: self.run_id}
        )
        deployment = runner_utils.extract_local_deployment_config(pipeline)
        compiled = deployment.metadata_connection_config
        kind = compiled.WhichOneof("connection_config")
        connection = metadata.Metadata(self._database or getattr(compiled, kind))
        is_shared = connection.connection_config.HasField("mysql")
        steps = [node.pipeline_node.node_info.id for node in pipeline.nodes]
        with connection as handle:
            if is_shared:
                claim_name(handle.store, name, self._root)
            check_root(handle.store, name, self._root)
            events.emit(
                "run_started", steps=steps, root=str(self._root), name=name, run=self.run_id
            )
            # In a shared database, only our pipeline.
            cleared = clean_up(self._root, self._serving, handle.store, name if is_shared else None)
        if cleared:
            events.emit("note", step=steps[0], text=cleared.text())
        if is_unfinished(self._root):
            text = "recsys forget was cut short in this root: run the same command again"
            events.emit("note", step=steps[0], text=text)
        if cleared.runs:
            self._report_killed(cleared.runs)
        recorder = Recorder(self._root, self.run_id, name)
        recorder.start(steps)
        return Run(pipeline, deployment, connection, recorder, lock)

    def _run_step(self, node: pipeline_pb2.PipelineNode, run: Run) -> int:
        """Runs a step and returns the id of its execution."""
        self.step = step = node.node_info.id
        started = time.monotonic()
        events.emit("step_started", step=step)
        try:
            with self._explained(step):
                id_ = self._launch(node, run)
                state, reason = _outcome(node, id_, run)
        except RecsysError as error:
            _report_end(run, step, "failed", str(error), time.monotonic() - started)
            raise
        _report_end(run, step, state, reason, time.monotonic() - started)
        if state == "ran":
            self._commit()
        return id_

    def _launch(self, node: pipeline_pb2.PipelineNode, run: Run) -> int:
        step = node.node_info.id
        if step == "Pusher" and not self._is_served(node, run):
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
        return int(launched.launch().execution_id)

    def _is_served(self, node: pipeline_pb2.PipelineNode, run: Run) -> bool:
        """Returns whether the last push is served, and equals the push of this run.

        Otherwise a cached push would name a removed or an old version.
        """
        with run.connection as handle:
            history = History(handle.store, run.name)
            last = history.last_good(node.node_info.id)
            if last is None:
                return True
            (resolved, *_) = inputs_utils.resolve_input_artifacts(
                pipeline_node=node, metadata_handle=handle
            )
            inputs = {key: [artifact.id for artifact in some] for key, some in resolved.items()}
            pushed = history.output(last.id, "pushed").custom_properties
            if inputs != history.inputs(last.id):
                return False
        destination = pushed[DESTINATION].string_value
        if not destination:
            # A rollback may have been undone since.
            return not pushed[WITHDRAWN].int_value
        return [Path(destination)] == versions(self._serving)[-1:]


def _stop_signals_raised() -> contextlib.AbstractContextManager[None]:
    """Raises `StoppedError` in the main thread, the only one that receives signals."""
    is_main = threading.current_thread() is threading.main_thread()
    return signals_raised() if is_main else contextlib.nullcontext()


def _report_end(run: Run, step: str, state: str, reason: str, seconds: float) -> None:
    events.emit("step_finished", step=step, state=state, reason=reason, seconds=seconds)
    run.recorder.step(step, state, reason, seconds)
    logging.info("%s %s: %s", step, state, reason)


def _outcome(node: pipeline_pb2.PipelineNode, execution_id: int, run: Run) -> tuple[str, str]:
    """Returns the state of a successful execution, and the reason."""
    step = node.node_info.id
    with run.connection as handle:
        history = History(handle.store, run.name)
        execution = history.execution(execution_id)
        if execution.last_known_state == Execution.FAILED:
            raise RuntimeError(f"The inputs of {step} could not be resolved.")
        if reason := _ALWAYS_RUN.get(step.split(".")[0]):
            return "ran", reason
        producers = {
            key: spec.channels[0].producer_node_query.id
            for key, spec in node.inputs.inputs.items()
            if spec.channels
        }
        reason = history.why(step, execution, producers)
    return ("cached" if execution.last_known_state == Execution.CACHED else "ran"), reason

"""`launcher: {kind: kubernetes}`: a stage as an indexed Job, a pod for each host.

The pods are those of a template of yours, which brings the image, the volumes and the GPUs. A
headless Service gives them names, by which they find the first one. They write what they make,
and the first one its progress, into folders that the run and all of them reach at one path.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveFloat

from recsys.config.safe_yaml import YamlProblem, parse_yaml
from recsys.distributed.launchers import Launcher, started_again, write_config
from recsys.errors import RecsysError, UsageError
from recsys.registry import register
from recsys.system import events
from recsys.system.parent import CHILD
from recsys.system.process import (
    last_json_line,
    raising_if_stopped,
    signals_passed_to,
    stage_environment,
)

_POLL_S = 1.0
_PATIENCE_S = 60.0
"""How long the API server may be out of reach before that is an error [s]."""
_SAVE_S = 600
"""How long a stage may take to save once its pods are asked to end [s]."""
_ANNOTATION = "batch.kubernetes.io/job-completion-index"
_FOLLOWS = {"R388": 1, "R375": 2}
"""Errors of a pod after another one failed: it lost that one, or was asked to stop."""
_LOG_LINES = 1000
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


@register("launcher", "kubernetes")
class KubernetesLauncher(Launcher):
    """An indexed Job for each stage, with a pod for each host.

    The run itself may be a pod too. It needs the right to create and delete jobs and services,
    to get the status of jobs, and to list pods and get their logs, in its namespace.
    """

    hosts: Annotated[int, Field(ge=1, le=10_000)]
    """Pods of a stage."""
    pod: Annotated[str, Field(min_length=1)]
    """File of the pods' template (YAML, `metadata` and `spec`, as in a Job): image, volumes,
    resources. The stage runs in its first container, in the working folder of that."""
    namespace: Annotated[str, Field(pattern=_NAME)] | None = None
    """Where they run; `null`: that of kubectl's context, or of this pod."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8476
    """Where the first one listens for the others."""
    python: Annotated[str, Field(min_length=1)] = "python"
    """Python of the image."""
    wait_s: PositiveFloat = 900.0
    """How long a pod may take to start, and how long the pods wait for each other [s]."""
    restarts: NonNegativeInt = 0
    """Times that a stage is started again, from its last checkpoint, after a pod was lost."""

    def check(self) -> None:
        """Makes sure that the template is one, and that jobs may be made.

        Raises:
            UsageError: It isn't, or they may not.
        """
        self._template()
        cluster = _Cluster(self.namespace)
        for verb, group, resource in (
            ("create", "batch", "jobs"),
            ("delete", "batch", "jobs"),
            ("get", "batch", "jobs/status"),
            ("create", "", "services"),
            ("delete", "", "services"),
            ("list", "", "pods"),
            ("get", "", "pods/log"),
        ):
            if not cluster.may(verb, group, resource):
                rule = f"The run must be allowed to {verb} {resource} in {cluster.namespace!r}."
                cure = "Bind its account to a Role that has it; docs/hosts.md shows one."
                raise UsageError("R396", rule, cure, "not allowed")

    def run(
        self, module: str, config: str, arguments: Sequence[str], folder: Path
    ) -> dict[str, Any]:
        """Runs a stage and returns its result; see `Launcher.run`."""
        file = write_config(module, config, folder)
        # The same for each run of this folder: what a killed one left behind is found again.
        number = hashlib.sha256(str(folder).encode()).hexdigest()[:10]
        name = f"recsys-{module.rpartition('.')[2].replace('_', '-').lower()[:30]}-{number}"
        words = [module, "--config", str(file), *arguments, "--wait", str(self.wait_s)]
        progress = folder / f"{module}.0.jsonl"
        job = _Job(_Cluster(self.namespace), name, self.wait_s)
        service, body = self._service(name), self.job(name, words, folder / module)

        def run() -> dict[str, Any]:
            progress.unlink(missing_ok=True)
            return job.run(module, service, body, events.relay(progress))

        return started_again(self.restarts, run)

    def job(self, name: str, stage: Sequence[str], progress: Path) -> dict[str, Any]:
        """Returns the Job of a stage.

        Args:
            name: Its name.
            stage: Module and command line of the stage.
            progress: Files for the events of the stage begin so; the host's number follows.
        """
        words = [self.python, *CHILD, *stage]
        template = self._template()
        grace = {"terminationGracePeriodSeconds": _SAVE_S}
        spec = {**grace, **template["spec"], "subdomain": name, "restartPolicy": "Never"}
        first, *others = spec["containers"]
        own = {
            **stage_environment("jax"),
            "RECSYS_COORDINATOR": f"{name}-0.{name}:{self.port}",
            "RECSYS_PROCESSES": str(self.hosts),
            events.ENVIRONMENT_VARIABLE: f"{_verbatim(str(progress))}.$(RECSYS_PROCESS).jsonl",
        }
        named = {variable.get("name") for variable in first.get("env", [])}
        if "workingDir" in first and "PYTHONPATH" not in named:
            own["PYTHONPATH"] = first["workingDir"]
        index = {
            "name": "RECSYS_PROCESS",
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{_ANNOTATION}']"}},
        }
        variables = [{"name": key, "value": value} for key, value in own.items()]
        environment = [*first.get("env", []), index, *variables]
        first = {**first, "command": [*map(_verbatim, words)], "args": [], "env": environment}
        spec["containers"] = [first, *others]
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {
                "completions": self.hosts,
                "parallelism": self.hosts,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "template": {**template, "spec": spec},
            },
        }

    def _service(self, name: str) -> dict[str, Any]:
        spec = {
            "clusterIP": "None",
            "selector": {"job-name": name},
            "publishNotReadyAddresses": True,
            "ports": [{"port": self.port}],
        }
        return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}

    def _template(self) -> dict[str, Any]:
        rule = f"`launcher.pod`, {self.pod}, must hold the template of a pod."
        cure = "Write spec: {containers: [{name, image, …}], volumes: […]}, as in a Job."
        try:
            template = parse_yaml(Path(self.pod).read_text(encoding="utf-8"))
        except (OSError, ValueError, YamlProblem) as error:
            raise UsageError("R396", rule, cure, str(error)) from None
        spec = template.get("spec") if isinstance(template, dict) else None
        containers = spec.get("containers") if isinstance(spec, dict) else None
        if not isinstance(containers, list) or not all(isinstance(c, dict) for c in containers):
            raise UsageError("R396", rule, cure, "spec.containers is no list")
        if not containers:
            raise UsageError("R396", rule, cure, "no container")
        return dict(template)


def _verbatim(word: str) -> str:
    """Returns a word for a container's command; Kubernetes would take `$(NAME)` as a variable."""
    return word.replace("$", "$$")


class _Cluster:
    """The API server, in one namespace.

    Args:
        namespace: The namespace; None for that of the context, or of this pod.
    """

    def __init__(self, namespace: str | None) -> None:
        try:
            from kubernetes import client, config
        except ImportError as error:
            rule = "`launcher: {kind: kubernetes}` needs Kubernetes' client for Python."
            raise UsageError("R396", rule, "Install the extra `all`.", str(error)) from None
        try:
            is_pod = "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ
            (config.load_incluster_config if is_pod else config.load_kube_config)()
        except Exception as error:  # noqa: BLE001 whatever a file of kubectl's makes it raise
            rule = "The run must know an API server."
            cure = "Give a kubeconfig (KUBECONFIG), or run it in a pod."
            raise UsageError("R396", rule, cure, str(error)) from None
        self._client = client
        self.batch, self.core = client.BatchV1Api(), client.CoreV1Api()
        self.namespace = namespace or (_ACCOUNT.read_text() if is_pod else _of_context(config))

    def may(self, verb: str, group: str, resource: str) -> bool:
        """Returns whether this account may do something in the namespace."""
        resource, _, sub = resource.partition("/")
        what = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        spec = {"resourceAttributes": {**what, **({"subresource": sub} if sub else {})}}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": spec,
        }
        review = self._client.AuthorizationV1Api().create_self_subject_access_review
        return bool(self.call_api(lambda: review(body)).status.allowed)

    def call_api(self, call: Callable[[], Any], or_none: int = 0) -> Any:
        """Returns what the API server answers; asks again for a while if it is out of reach.

        Args:
            call: Asks it.
            or_none: A status that is answered by None, such as 404.

        Raises:
            RecsysError: It refuses, or stays out of reach.
        """
        from urllib3.exceptions import HTTPError

        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return call()
            except self._client.ApiException as error:
                if or_none and error.status == or_none:
                    return None
                if error.status < 500 and error.status != 429:
                    raise _refused(error.status, error.body or error.reason) from None
                failure = f"{error.status} {error.reason}"
            except HTTPError as error:
                failure = str(error)
            if time.monotonic() > deadline:
                raise _refused(0, failure)
            time.sleep(_POLL_S)


def _of_context(config: Any) -> str:
    return str(config.list_kube_config_contexts()[1]["context"].get("namespace", "default"))


def _refused(status: int, said: Any) -> RecsysError:
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    with suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["message"])
    rule = "Kubernetes' API server must do what a stage needs."
    cure = "docs/hosts.md lists the rights; the template of the pods may be wrong too."
    return RecsysError("R396", rule, cure, f"{status or 'out of reach'}: {text}")


class _Job:
    """A stage's Job and its Service, by one name, for as long as it runs.

    Args:
        cluster: Where.
        name: Their name.
        wait_s: How long a pod may take to start [s].
    """

    def __init__(self, cluster: _Cluster, name: str, wait_s: float) -> None:
        self._cluster, self._name, self._wait_s = cluster, name, wait_s
        self._at = {"name": name, "namespace": cluster.namespace}

    def run(
        self,
        module: str,
        service: dict[str, Any],
        body: dict[str, Any],
        relay: Callable[[], None],
    ) -> dict[str, Any]:
        """Runs the Job to its end and returns the result of the first pod.

        Args:
            module: The stage.
            service: The Service.
            body: The Job.
            relay: Passes on the progress so far.

        Raises:
            RecsysError: The stage failed.
            StoppedError: This process was stopped meanwhile, and signals are raised.
        """
        stop: list[bool] = []
        with self._made(service, body), signals_passed_to(lambda: stop.append(True)) as passed_on:
            self._wait(relay, stop)
            if stop:
                self._delete_job(wait=False)  # Its pods save what they have.
                self._wait(relay, [])
            relay()
            with raising_if_stopped(passed_on):
                if stop:
                    rule = f"The pods of {self._name} were stopped, and have saved a checkpoint."
                    cure = "Run the same command again; training resumes from its last checkpoint."
                    raise RecsysError("R611", rule, cure, signal.Signals(passed_on[0]).name)
                return self._result(module)

    @contextmanager
    def _made(self, service: dict[str, Any], body: dict[str, Any]) -> Iterator[None]:
        core, batch, ask = self._cluster.core, self._cluster.batch, self._cluster.call_api
        self._delete()  # What a killed run left.
        try:
            ask(lambda: core.create_namespaced_service(self._cluster.namespace, service))
            ask(lambda: batch.create_namespaced_job(self._cluster.namespace, body))
            yield
        finally:
            self._delete()

    def _delete(self) -> None:
        core, ask = self._cluster.core, self._cluster.call_api
        self._delete_job(wait=True)
        ask(lambda: core.delete_namespaced_service(**self._at), or_none=404)

    def _delete_job(self, wait: bool) -> None:
        batch, ask = self._cluster.batch, self._cluster.call_api
        # In the foreground: the Job is there until its pods are gone.
        how = {"propagation_policy": "Foreground"}
        ask(lambda: batch.delete_namespaced_job(**self._at, **how), or_none=404)
        deadline = time.monotonic() + _SAVE_S
        while wait and self._status() is not None and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _status(self) -> Any:
        """Returns the Job's status; None if it isn't there."""
        read = self._cluster.batch.read_namespaced_job_status
        job = self._cluster.call_api(lambda: read(**self._at), or_none=404)
        return None if job is None else job.status

    def _wait(self, relay: Callable[[], None], stop: Sequence[bool]) -> None:
        """Waits until the Job has ended or is gone, or this process is asked to stop."""
        started = time.monotonic()
        has_started = False
        while not stop and (status := self._status()) is not None:
            relay()
            kinds = {c.type for c in status.conditions or () if c.status == "True"}
            if kinds & {"Complete", "Failed"}:
                return
            if not has_started and time.monotonic() - started > self._wait_s:
                self._check_started()
                has_started = True
            time.sleep(_POLL_S)

    def _check_started(self) -> None:
        for pod in self._pods():
            if pod.status.phase != "Pending":
                continue
            reasons = [
                c.message or c.reason for c in pod.status.conditions or () if c.status != "True"
            ]
            waiting = [c.state.waiting for c in pod.status.container_statuses or ()]
            reasons += [w.message or w.reason for w in waiting if w is not None]
            rule = f"The pods of {self._name} must start within {self._wait_s:.0f} s."
            cure = "Free the resources, correct the template, or raise `launcher.wait_s`."
            raise RecsysError(
                "R396", rule, cure, f"{pod.metadata.name}: {'; '.join(filter(None, reasons))}"
            )

    def _pods(self) -> list[Any]:
        """Returns its pods, those that ended first first."""
        listed = self._cluster.core.list_namespaced_pod
        selector = f"job-name={self._name}"
        pods = self._cluster.call_api(
            lambda: listed(self._cluster.namespace, label_selector=selector)
        )

        def ended(pod: Any) -> float:
            state = _terminated(pod)
            return state.finished_at.timestamp() if state and state.finished_at else float("inf")

        return sorted(pods.items, key=ended)

    def _result(self, module: str) -> dict[str, Any]:
        """Returns the result of the first pod, or raises the error that a pod failed by."""
        result: dict[str, Any] | None = None
        errors: list[RecsysError] = []
        silent = ""
        for pod in self._pods():
            name, state, log = pod.metadata.name, _terminated(pod), self._log(pod)
            answer = _last_json(log)
            if pod.status.phase == "Succeeded":
                result = answer if _index(pod) == 0 else result
                continue
            print(f"{name}: {log or 'no log'}", file=sys.stderr)  # noqa: T201 to the log
            if answer is not None and "error" in answer:
                errors.append(RecsysError.from_json(answer["error"]))
            reason = f"{state.reason}, exit code {state.exit_code}" if state else "it is gone"
            silent = silent or f"{name}: {reason}"
        if errors:
            # Their times are whole seconds, so what tells the cause from what follows is the code.
            raise min(errors, key=lambda error: _FOLLOWS.get(error.code, 0))
        if silent or result is None:
            rule = f"The pods of {self._name} must run {module} to completion."
            cure = "See their output in the log."
            raise RecsysError("R396", rule, cure, silent or "the first one is gone")
        return result

    def _log(self, pod: Any) -> str:
        read, namespace = self._cluster.core.read_namespaced_pod_log, self._cluster.namespace
        # As bytes: the client would turn a log that is JSON into Python's words for it.
        how = {"container": pod.spec.containers[0].name, "_preload_content": False}
        how["tail_lines"] = _LOG_LINES
        log = self._cluster.call_api(lambda: read(pod.metadata.name, namespace, **how), or_none=404)
        return "" if log is None else log.data.decode(errors="replace")


def _terminated(pod: Any) -> Any:
    """Returns how the first container of a pod ended; None while it runs."""
    states = pod.status.container_statuses or ()
    name = pod.spec.containers[0].name
    return next((s.state.terminated for s in states if s.name == name), None)


def _index(pod: Any) -> int:
    return int(pod.metadata.annotations[_ANNOTATION])


def _last_json(log: str) -> dict[str, Any] | None:
    """Returns the last line of a log that is a JSON object, as stdout and stderr are one there."""
    values = (last_json_line(line) for line in reversed(log.splitlines()))
    return next((value for value in values if value is not None), None)

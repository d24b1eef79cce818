"""The launcher for Kubernetes, against an API server whose pods are processes of this machine.

The server has of Kubernetes what a stage needs: an indexed Job with its pods, their logs, the
variables of their commands, and how a Job ends. It says nothing about a real cluster's network.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from launching import STAGES, launch, lives
from training_runs import STAGE, Run, assert_same_bits

from recsys.config.load import load_config
from recsys.distributed import kubernetes_launcher
from recsys.distributed.kubernetes_launcher import KubernetesLauncher
from recsys.distributed.launchers import launching_by, run_launched
from recsys.errors import ConfigError, RecsysError, UsageError
from recsys.system import events

CONFIG = Path(__file__).parent.parent / "configs" / "movielens_small.yaml"
NAMESPACE = "night"
INDEX = "batch.kubernetes.io/job-completion-index"
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Cluster:
    """Jobs and their pods, as an API server shows them."""

    def __init__(self, folder):
        self.folder = folder
        self.jobs, self.services, self.pods = {}, {}, defaultdict(list)
        self.forbidden, self.made, self.outages, self.is_full = set(), [], 0, False
        self.address = None

    def create(self, kind, body):
        name, kept = body["metadata"]["name"], getattr(self, kind)
        if not LABEL.fullmatch(name):
            return 422, failure("Invalid", f"{name} is no label")
        if name in kept:
            return 409, failure("AlreadyExists", f"{kind} {name} already exists")
        kept[name] = body
        self.made.append((kind, name))
        if kind == "jobs" and not self.is_full:
            spec = body["spec"]
            assert spec["completionMode"] == "Indexed"
            assert spec["template"]["spec"]["subdomain"] in self.services
            self.pods[name] = [self.start(name, spec, i) for i in range(spec["completions"])]
        elif kind == "jobs":
            self.pods[name] = [(0, None, None)]
        return 201, body

    def start(self, name, spec, index):
        container = spec["template"]["spec"]["containers"][0]
        variables = {}
        for entry in container["env"]:
            if "valueFrom" in entry:
                path = entry["valueFrom"]["fieldRef"]["fieldPath"]
                assert path == f"metadata.annotations['{INDEX}']"
            value = str(index) if "valueFrom" in entry else expanded(entry["value"], variables)
            if self.address is not None:  # What the name of the first pod resolves to.
                value = value.replace(f"{name}-0.{name}:8476", self.address)
            variables[entry["name"]] = value
        words = [expanded(word, variables) for word in container["command"]]
        log = self.folder / f"{name}-{index}.log"
        own = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with log.open("wb") as file:
            process = subprocess.Popen(words, env={**own, **variables}, stdout=file, stderr=file)
        return index, process, log

    def job(self, name):
        if name not in self.jobs:
            return 404, failure("NotFound", f"jobs {name} not found")
        codes = [process and process.poll() for _, process, _ in self.pods[name]]
        if any(codes):  # A Job that failed ends the pods that still run.
            self.end(name)
        met = "Complete" if codes and not any(c is None or c for c in codes) else None
        kind = "Failed" if any(codes) and None not in codes else met
        conditions = [{"type": kind, "status": "True"}] if kind else []
        return 200, {**self.jobs[name], "status": {"conditions": conditions}}

    def delete_job(self, name):
        if name not in self.jobs:
            return 404, failure("NotFound", f"jobs {name} not found")
        self.end(name)
        threading.Thread(target=self.forget, args=(name,)).start()
        return 200, {"kind": "Status", "status": "Success"}

    def end(self, name):
        for _, process, _ in self.pods[name]:
            if process is not None and process.poll() is None:
                process.terminate()

    def forget(self, name):
        for _, process, _ in self.pods[name]:
            if process is not None:
                process.wait()
        self.jobs.pop(name, None)
        self.pods.pop(name, None)

    def listed(self, name):
        return 200, {"items": [shown(name, *pod) for pod in self.pods[name]]}


def expanded(text, variables):
    """Returns a word as Kubernetes hands it to a container: `$(NAME)` expanded, `$$` one `$`."""

    def value(match):
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_]\w*)\)", value, text)


def failure(reason, message):
    return {"kind": "Status", "status": "Failure", "reason": reason, "message": message}


def shown(job, index, process, log):
    """Returns a pod as the server shows it."""
    code, state, conditions = process and process.poll(), {}, []
    if process is None:
        phase = "Pending"
        conditions = [{"type": "PodScheduled", "status": "False", "message": "no GPU is free"}]
    elif code is None:
        phase = "Running"
    else:
        phase = "Failed" if code else "Succeeded"
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(log.stat().st_mtime))
        ended = {"exitCode": code, "reason": "OOMKilled" if code == -9 else "Error"}
        state = {"terminated": {**ended, "finishedAt": at}}
    container = {"name": "recsys", "image": "i", "imageID": "i", "ready": False, "restartCount": 0}
    return {
        "metadata": {"name": f"{job}-{index}", "annotations": {INDEX: str(index)}},
        "spec": {"containers": [{"name": "recsys"}]},
        "status": {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": [{**container, "state": state}],
        },
    }


def handler(cluster):
    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or "{}")
            status, said = self.answered(body)
            text = said if isinstance(said, str) else json.dumps(said)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(text.encode())

        def answered(self, body):
            if cluster.outages:
                cluster.outages -= 1
                return 503, failure("ServiceUnavailable", "a moment")
            url = urlsplit(self.path)
            parts = url.path.strip("/").split("/")
            if parts[-1] == "selfsubjectaccessreviews":
                asked = body["spec"]["resourceAttributes"]
                what = (asked["verb"], asked["resource"], asked.get("subresource"))
                return 201, {
                    "spec": body["spec"],
                    "status": {"allowed": what not in cluster.forbidden},
                }
            assert NAMESPACE in parts
            kind, *rest = parts[parts.index(NAMESPACE) + 1 :]
            match self.command, kind, rest:
                case "POST", _, []:
                    return cluster.create(kind, body)
                case "DELETE", "jobs", [name]:
                    return cluster.delete_job(name)
                case "DELETE", "services", [name]:
                    gone = cluster.services.pop(name, None) is None
                    return (404, failure("NotFound", name)) if gone else (200, {})
                case "GET", "jobs", [name, "status"]:
                    return cluster.job(name)
                case "GET", "pods", []:
                    selector = parse_qs(url.query)["labelSelector"][0]
                    return cluster.listed(selector.removeprefix("job-name="))
                case "GET", "pods", [pod, "log"]:
                    return 200, (cluster.folder / f"{pod}.log").read_text()
            raise AssertionError(self.path)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_):
            pass

    return Handler


@pytest.fixture(name="cluster")
def _cluster(tmp_path, monkeypatch):
    folder = tmp_path / "pods"
    folder.mkdir()
    cluster = Cluster(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(cluster))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kubeconfig = tmp_path / "kubeconfig"
    context = {"cluster": "c", "user": "u", "namespace": NAMESPACE}
    server_url = f"http://127.0.0.1:{server.server_port}"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "current-context": "x",
                "contexts": [{"name": "x", "context": context}],
                "clusters": [{"name": "c", "cluster": {"server": server_url}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig)
    )
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setattr(kubernetes_launcher, "_POLL_S", 0.05)
    yield cluster
    for name in list(cluster.jobs):
        cluster.end(name)
    server.shutdown()
    server.server_close()


@pytest.fixture(name="pod")
def _pod(tmp_path):
    path = [str(STAGES), str(Path(__file__).parent.parent)]
    container = {
        "name": "recsys",
        "image": "registry.example/recsys:1",
        "env": [{"name": "PYTHONPATH", "value": os.pathsep.join(path)}],
    }
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump({"spec": {"containers": [container]}}))
    return file


def launcher(pod, n=2, **more):
    return KubernetesLauncher(hosts=n, pod=str(pod), python=sys.executable, **more)


def test_the_result_is_the_first_pods_and_its_progress_is_seen(cluster, pod, tmp_path, monkeypatch):
    file = tmp_path / "events.jsonl"
    monkeypatch.setenv(events.ENVIRONMENT_VARIABLE, str(file))
    folder = tmp_path / "a $(HOME) of 5 $$"
    (folder / "launch").mkdir(parents=True)
    of_before = {"kind": "progress", "time": 0.0, "done": 7}
    (folder / "launch" / "launched_stage.0.jsonl").write_text(json.dumps(of_before) + "\n")
    result = launch(launcher(pod), folder, "ends", "ends")
    assert result["process_id"] == 0
    assert result["num_processes"] == "2"
    (_, name), _ = cluster.made
    assert result["coordinator"] == f"{name}-0.{name}:8476"
    assert [event["done"] for event in events.EventReader(file)] == [0]
    assert not cluster.jobs
    assert not cluster.services


@pytest.mark.thorough
def test_two_pods_train_what_one_process_does_on_two_devices(cluster, pod, data, tmp_path):
    stage = {**STAGE, "train": {**STAGE["train"], "epochs": 4}}
    alone, run = (Run(tmp_path / name, data, stage) for name in ("alone", "pods"))
    alone.finish_here()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        cluster.address = f"127.0.0.1:{probe.getsockname()[1]}"
    template = yaml.safe_load(pod.read_text())
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    own = {"XLA_FLAGS": flags, "KERAS_BACKEND": "jax"}
    container = template["spec"]["containers"][0]
    container["env"] += [{"name": name, "value": value} for name, value in own.items()]
    pod.write_text(yaml.safe_dump(template))
    with launching_by(launcher(pod), tmp_path / "root"):
        folders = ["--data", str(data), "--out", str(run.model)]
        result = run_launched("recsys.train", json.dumps(stage), folders)
    assert result["processes"] == 2
    assert not cluster.jobs
    assert_same_bits(run, alone)


def test_the_error_of_a_pod_is_that_of_the_run(cluster, pod, tmp_path):
    with pytest.raises(RecsysError, match="R322"):
        launch(launcher(pod), tmp_path / "run", "waits", "fails")
    assert not cluster.jobs
    assert not any(lives(tmp_path / "run", index) for index in (0, 1))


def test_a_pod_that_ends_without_a_word_is_named(cluster, pod, tmp_path):
    with pytest.raises(RecsysError, match=r"R396.*-0: Error, exit code 7"):
        launch(launcher(pod, 1), tmp_path / "run", "dies")
    assert not cluster.jobs


def test_after_a_lost_pod_all_start_again_as_often_as_the_config_says(cluster, pod, tmp_path):
    with pytest.raises(RecsysError, match="R388"):
        launch(launcher(pod), tmp_path / "never", "lost once", "waits")
    launch(launcher(pod, 1, restarts=1), tmp_path / "once", "lost once")
    assert [kind for kind, _ in cluster.made].count("jobs") == 3


def test_pods_that_do_not_start_end_the_run_with_the_clusters_reason(cluster, pod, tmp_path):
    cluster.is_full = True
    with pytest.raises(RecsysError, match=r"R396.*-0: no GPU is free"):
        launch(launcher(pod, wait_s=0.2), tmp_path / "run", "ends", "ends")
    assert not cluster.jobs


def test_what_a_killed_run_left_is_removed_first(cluster, pod, tmp_path):
    launch(launcher(pod, 1), tmp_path / "run", "ends")
    (_, name), _ = cluster.made
    for kind in ("services", "jobs"):
        template = {"spec": {"subdomain": name}}
        spec = {"completions": 0, "completionMode": "Indexed", "template": template}
        cluster.create(kind, {"metadata": {"name": name}, "spec": spec})
    assert launch(launcher(pod, 1), tmp_path / "run", "ends")["process_id"] == 0


def test_a_server_that_is_away_for_a_moment_is_asked_again(cluster, pod, tmp_path):
    cluster.outages = 5
    assert launch(launcher(pod, 1), tmp_path / "run", "ends")["process_id"] == 0


def test_a_run_that_is_stopped_lets_its_pods_save(cluster, pod, tmp_path):
    def stop():
        while not all((tmp_path / "run" / f"{index}.pid").exists() for index in (0, 1)):
            time.sleep(0.02)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    with pytest.raises(RecsysError, match="R611"):
        launch(launcher(pod), tmp_path / "run", "waits", "waits")
    assert not any(lives(tmp_path / "run", index) for index in (0, 1))
    assert all("R375" in log.read_text() for log in cluster.folder.glob("*.log"))


# --- before the run


def test_a_right_that_is_missing_is_told_before_the_run(cluster, pod):
    launcher(pod).check()
    rights = [("get", "pods", "log"), ("get", "jobs", "status"), ("delete", "services", None)]
    for right in rights:
        cluster.forbidden = {right}
        with pytest.raises(UsageError, match=rf"R396.*{right[0]} {right[1]}.* in 'night'"):
            launcher(pod).check()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("spec: {}", "spec.containers is no list"),
        ("spec: {containers: []}", "no container"),
        ("[1", "expected ',' or ']'"),
        ("{spec: {containers: [{name: a, name: b}]}}", "duplicate key 'name'"),
        (None, "No such file"),
    ],
)
def test_a_template_that_is_none_is_told_with_its_file(text, problem, tmp_path):
    file = tmp_path / "pod.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=rf"R396.*pod\.yaml, must.*{problem}"):
        launcher(file).check()


def test_its_keys_are_checked():
    text = "{kind: kubernetes, hosts: 4, pod: pod.yaml}"
    assert load_config(CONFIG, [f"launcher={text}"]).launcher.hosts == 4
    with pytest.raises(ConfigError, match=r"'launcher\.pod' is required"):
        load_config(CONFIG, ["launcher={kind: kubernetes, hosts: 4}"])

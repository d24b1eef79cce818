"""The manifests of deploy/kubernetes, against the schemas of their resources."""

import json
import lzma
import re
import shlex

import jsonschema_rs
import pytest
import typer
import yaml
from places import ROOT

from recsys.cli import app
from recsys.config.load import load_config

CONFIG = ROOT / "configs" / "movielens_small.yaml"
SCHEMAS = json.loads(
    lzma.decompress((ROOT / "tests" / "project" / "schemas" / "kubernetes.json.xz").read_bytes())
)
MANIFESTS = {
    resource["kind"]: resource
    for file in sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
    for resource in yaml.safe_load_all(file.read_text())
}


def schema_of(resource):
    return jsonschema_rs.validator_for(SCHEMAS[f"{resource['apiVersion']}/{resource['kind']}"])


def maps_in(value):
    """Yields all maps of a manifest."""
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, dict | list):
            yield from maps_in(part)


def pods_of(resource):
    return [part["spec"] for part in maps_in(resource) if "containers" in part.get("spec", {})]


KINDS = ["JobSet", "TrainingRuntime", "TrainJob", "RayJob", "FlinkDeployment", "SparkApplication"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_fits_the_schema_of_its_resource(kind):
    schema_of(MANIFESTS[kind]).validate(MANIFESTS[kind])


def test_the_compose_file_fits_its_schema():
    compose = yaml.safe_load((ROOT / "deploy" / "flink" / "compose.yaml").read_text())
    schema = jsonschema_rs.validator_for(SCHEMAS["compose"])
    schema.validate(compose)
    compose["services"]["jobserver"]["plantedField"] = 1
    assert not schema.is_valid(compose)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_field_is_found_at_every_place(kind):
    resource, schema = MANIFESTS[kind], schema_of(MANIFESTS[kind])
    maps = [part for part in maps_in(resource) if not {"name", "nvidia.com/gpu"} >= part.keys()]
    free = {"labels", "rayStartParams", "limits", "requests", "flinkConfiguration"}
    for part in maps:
        if any(part is whole.get(key) for whole in maps for key in free):
            continue  # Its keys are free.
        part["plantedField"] = 1
        assert not schema.is_valid(resource), part
        del part["plantedField"]
    schema.validate(resource)


@pytest.mark.parametrize("kind", ["JobSet", "TrainingRuntime", "RayJob"])
def test_each_pod_mounts_the_shared_volume_and_has_time_to_save(kind):
    assert pods_of(MANIFESTS[kind])
    for pod in pods_of(MANIFESTS[kind]):
        assert {"name": "shared", "persistentVolumeClaim": {"claimName": "recsys"}} in pod[
            "volumes"
        ]
        for container in pod["containers"]:
            assert {"name": "shared", "mountPath": "/shared"} in container["volumeMounts"]
        assert pod["terminationGracePeriodSeconds"] == 600


def expanded(words, environment):
    """Returns a command as Kubernetes expands it."""
    return [re.sub(r"\$\((\w+)\)", lambda name: environment[name[1]], word) for word in words]


def options_of(words):
    assert words[0] == "recsys"
    command = typer.main.get_command(app).commands[words[1]]
    return command.make_context(words[1], list(words[2:])).params


def test_the_pods_of_the_jobset_name_their_first_one():
    resource = MANIFESTS["JobSet"]
    (group,) = resource["spec"]["replicatedJobs"]
    (container,) = pods_of(resource)[0]["containers"]
    environment = {variable["name"]: variable.get("value") for variable in container["env"]}
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    environment |= {
        variable["name"]: "3"
        for variable in container["env"]
        if variable.get("valueFrom") == {"fieldRef": {"fieldPath": index}}
    }
    options = options_of(expanded(container["command"], environment))
    name, job = resource["metadata"]["name"], group["template"]["spec"]
    # JobSet names pods `<jobset>-<group>-<replica>-<index>`, in a Service of the jobset's name.
    assert options["coordinator"].partition(":")[0] == f"{name}-{group['name']}-0-0.{name}"
    assert options["num_processes"] == job["parallelism"] == job["completions"]
    assert options["process_id"] == 3


def test_the_trainjob_takes_what_its_runtime_sets():
    job, runtime = MANIFESTS["TrainJob"], MANIFESTS["TrainingRuntime"]
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime"}
    assert job["spec"]["runtimeRef"] == {**reference, "name": runtime["metadata"]["name"]}
    # kubeflow/trainer v2.3.0, pkg/runtime/framework/plugins/jax: set in the container `node`.
    assert "jax" in runtime["spec"]["mlPolicy"]
    assert pods_of(runtime)[0]["containers"][0]["name"] == "node"
    environment = {"JAX_COORDINATOR_ADDRESS": "train-node-0-0.train:29500"}
    environment |= {"JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "1"}
    options = options_of(expanded(job["spec"]["trainer"]["command"], environment))
    assert options["coordinator"] == environment["JAX_COORDINATOR_ADDRESS"]
    assert (options["num_processes"], options["process_id"]) == (4, 1)


def test_the_rayjob_starts_as_many_workers_as_the_launcher_uses():
    spec = MANIFESTS["RayJob"]["spec"]
    options = options_of(shlex.split(spec["entrypoint"]))
    overrides = dict(override.split("=", 1) for override in options["sets"])
    launcher = load_config(CONFIG, [f"launcher={overrides['launcher']}"]).launcher
    (workers,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    limits = workers["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert (launcher.hosts, launcher.address) == (workers["replicas"], "auto")
    assert launcher.resources == {"GPU": limits["nvidia.com/gpu"]}
    assert workers["minReplicas"] == workers["maxReplicas"] == workers["replicas"]
    assert spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}

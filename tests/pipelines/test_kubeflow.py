"""The pipeline for Kubeflow: what is compiled is what runs here, and what can't is refused."""

import json
import os
import random
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("tfx", reason="needs the extra `pipeline`")
pytest.importorskip("kfp", reason="needs the extra `kubeflow`")
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.dsl.components.base.base_component import BaseComponent

from components import artifacts
from pipelines import kubeflow, kubeflow_entrypoint
from pipelines.kubeflow import for_kubeflow
from pipelines.kubeflow_entrypoint import addressed, mounted
from pipelines.retrieval_pipeline import create_pipeline
from recsys.config.load import load_config
from recsys.errors import UsageError

pytestmark = pytest.mark.pipeline
IMAGE = "registry.example/recsys/pipeline:1"
PAIR = {
    "warm_start": "{}",
    "data.interactions.labels": "{like: {column: rating, at_least: 4}}",
    "ranker": "{model: dcn_v2, labels: {like: 1}}",
}
RESOLVERS = {"EarlierStatistics", "PreviousVocabularies", "LatestBlessed", "WarmBase"}


def write(folder, bucket, **changes):
    """Writes a config whose files are in `bucket`, a URL or a folder."""
    feature = {"name": "genres", "column": "genres", "kind": "categories"}
    raw = {
        "name": "tiny",
        "root": f"{bucket}/recsys",
        "data": {
            "interactions": {
                "files": f"{bucket}/ratings.csv",
                "columns": {"user": "user", "item": "item", "timestamp": "time"},
            },
            "items": {
                "files": [f"{bucket}/films.csv"],
                "columns": {"item": "id", "title": "name"},
                "features": [feature],
            },
            "eval_share": 0.2,
            "gate": {"max_drift": None, "max_skew": None},
        },
        "model": {"dim": 8, "feature_dim": 4, "history": 5, "widths": [16]},
        "train": {"batch_size": 64, "epochs": 2},
        "bless": {
            "metric": "auc",
            "at_least": 0.01,
            "over": {},
            "over_blessed": 0.0,
            "over_strongest": 0.0,
            "sure_loss": "allow",
        },
        "export": {"k": 10},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(raw))
    return load_config(path, [f"{key}={value}" for key, value in changes.items()])


@pytest.fixture(
    scope="module", params=[{}, {"warm_start": "{}"}, PAIR], ids=["cold", "warm", "pair"]
)
def compiled(request, tmp_path_factory):
    """The compiled job, as written, and the same pipeline as it runs here."""
    changes = request.param
    folder = tmp_path_factory.mktemp("kubeflow")
    (folder / "ratings.csv").write_text("user,item,time\n")
    (folder / "films.csv").write_text("id,name,genres\n")
    job = folder / "pipeline.json"
    kubeflow.compile_pipeline(write(folder, "gs://bucket", **changes), IMAGE, job)
    local = create_pipeline(write(folder, str(folder), **changes))
    return json.loads(job.read_text()), {node.id: node for node in local.components}


def is_resolver(name):
    return name.split(".")[0].split("-")[0] in RESOLVERS


def parsed(job):
    spec = pipeline_spec_pb2.PipelineSpec()
    json_format.ParseDict(job["pipelineSpec"], spec)
    deployment = pipeline_spec_pb2.PipelineDeploymentConfig()
    json_format.ParseDict(job["pipelineSpec"]["deploymentSpec"], deployment)
    return spec, deployment


def test_it_is_a_job_as_kubeflow_defines_it(compiled):
    job, _ = compiled
    json_format.ParseDict(job, pipeline_spec_pb2.PipelineJob())
    spec, _ = parsed(job)
    assert spec.pipeline_info.name == "tiny"
    assert spec.schema_version == "2.1.0"
    assert job["runtimeConfig"] == {"gcsOutputDirectory": "gs://bucket/recsys/artifacts"}


def test_every_step_that_runs_here_is_a_container_of_ours_there(compiled):
    job, local = compiled
    spec, deployment = parsed(job)
    steps = {name for name in local if not is_resolver(name)}
    assert {name for name in spec.root.dag.tasks if not is_resolver(name)} == steps
    for name in steps:
        task = spec.root.dag.tasks[name]
        label = spec.components[task.component_ref.name].executor_label
        container = deployment.executors[label].container
        assert container.image == IMAGE
        assert tuple(container.command) == kubeflow.ENTRYPOINT
        executor = local[name].executor_spec.executor_class
        words = list(container.args)
        path = words[words.index("--executor_class_path") + 1]
        assert path == f"{executor.__module__}.{executor.__name__}"
        assert not task.caching_options.enable_cache


def test_the_steps_are_joined_as_they_are_here(compiled):
    job, local = compiled
    spec, _ = parsed(job)
    for name, node in local.items():
        if not isinstance(node, BaseComponent):
            continue
        edges = {
            (key, channel.producer_component_id, channel.output_key)
            for key, channel in node.inputs.items()
            if not is_resolver(channel.producer_component_id)
        }
        task = spec.root.dag.tasks[name]
        given = {key: one.task_output_artifact for key, one in task.inputs.artifacts.items()}
        assert {
            (key, one.producer_task, one.output_artifact_key)
            for key, one in given.items()
            if not is_resolver(one.producer_task)
        } == edges
        upstream = {one.id for one in node.upstream_nodes if not is_resolver(one.id)}
        assert {one for one in task.dependent_tasks if not is_resolver(one)} == upstream


def test_every_parameter_is_there_and_names_no_folder_of_this_machine(compiled, tmp_path):
    job, local = compiled
    spec, _ = parsed(job)
    for name, node in local.items():
        if is_resolver(name):
            continue
        expected = {key for key, value in node.exec_properties.items() if value is not None}
        parameters = spec.root.dag.tasks[name].inputs.parameters
        assert set(parameters) == expected
    assert str(tmp_path.parent) not in json.dumps(job)
    trainer = spec.root.dag.tasks["Trainer"].inputs.parameters
    checkpoints = trainer["checkpoints"].runtime_value.constant.string_value
    assert checkpoints == "/gcs/bucket/recsys/checkpoints"
    reporter = spec.root.dag.tasks["Reporter"].inputs.parameters
    assert reporter["run_id"].runtime_value.constant.string_value == "{{$.pipeline_job_name}}"


def test_the_model_is_compared_with_and_continues_from_the_latest_blessed_one(compiled):
    job, local = compiled
    spec, deployment = parsed(job)
    asked = [("RetrievalEvaluator", "blessed_model")]
    trainers = [name for name in ("Trainer", "RankTrainer") if name in local]
    asked += [(name, "base") for name in trainers] if "WarmBase" in local else []
    for name in trainers:
        is_warm = "base" in spec.root.dag.tasks[name].inputs.artifacts
        assert is_warm == ("WarmBase" in local)
    for step, key in asked:
        given = spec.root.dag.tasks[step].inputs.artifacts[key]
        resolver = given.task_output_artifact.producer_task
        label = spec.components[spec.root.dag.tasks[resolver].component_ref.name].executor_label
        query = deployment.executors[label].resolver.output_artifact_queries["model"].filter
        assert 'schema_title="tfx.Model"' in query
        assert "current_model_id" in query


def test_a_ranker_is_one_step_more_and_its_pair_goes_on_as_the_model(tmp_path):
    (tmp_path / "ratings.csv").write_text("user,item,time\n")
    (tmp_path / "films.csv").write_text("id,name,genres\n")

    def edges(**changes):
        """Returns where each step takes each input from."""
        steps = create_pipeline(write(tmp_path, str(tmp_path), **changes)).components
        return {
            step.id: {
                (key, channel.producer_component_id, channel.output_key)
                for key, channel in step.inputs.items()
            }
            for step in steps
            if isinstance(step, BaseComponent)
        }

    alone, pair = edges(**{**PAIR, "ranker": "null"}), edges(**PAIR)
    assert pair.pop("RankTrainer") == {
        ("model", "Trainer", "model"),
        ("data", "InteractionEncoder", "data"),
        ("verdict", "DataGate", "verdict"),
        ("base", "WarmBase", "model"),
    }
    before = ("Trainer", "model")
    for step, its in alone.items():
        moved = {
            (key, "RankTrainer", "pair") if tuple(of) == before else (key, *of) for key, *of in its
        }
        assert pair[step] == moved, step


def test_at_home_our_types_keep_their_names(compiled):
    del compiled
    assert artifacts.DeadLetters.TYPE_NAME == "DeadLetters"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"root": "/data/recsys"}, "root"),
        ({"root": "gs://bucket"}, "root"),
        ({"name": "my_films"}, "name"),
        ({"data.interactions.files": "ratings.csv"}, "data.interactions.files"),
        ({"data.items.files": "[gs://bucket/a.csv, b.csv]"}, "data.items.files"),
        ({"data.gate.schema_dir": "schemas"}, "data.gate.schema_dir"),
        ({"data.gate.max_drift": "0.3"}, "data.gate.max_drift"),
        ({"data.gate.max_skew": "0.3"}, "data.gate.max_skew"),
        ({"metadata.mysql": "{host: h, database: d, user: u}"}, "metadata.mysql"),
        ({"keep.runs": "3"}, "keep"),
        ({"notify.webhook_env": "HOOK"}, "notify.webhook_env"),
        ({"launcher.processes": "2"}, "launcher"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_can_not_work_there_is_refused_here(tmp_path, changes, key):
    config = write(tmp_path, "gs://bucket", **changes)
    with pytest.raises(UsageError, match=rf"R617.*`{key}`"):
        for_kubeflow(config)


def test_addresses_and_paths_turn_into_each_other(monkeypatch):
    monkeypatch.setenv("RECSYS_GCS_MOUNT", "/mnt/b")
    assert mounted("gs://bucket/a/b") == "/mnt/b/bucket/a/b"
    assert addressed("/mnt/b/bucket/a/b") == "gs://bucket/a/b"
    assert mounted("/etc/a") == addressed("/etc/a") == "/etc/a"
    assert mounted("s3://bucket/a") == "s3://bucket/a"


def test_the_entry_point_names_models_as_the_platform_does():
    blessing = {"metadata": {"current_model_id": 7.0, "baseline_model_id": 8.0, "blessed": 1.0}}
    output = {"artifacts": {"blessing": {"artifacts": [blessing]}}}
    inputs = {
        "model": {"artifacts": [{"name": "projects/42/artifacts/new"}]},
        "blessed_model": {"artifacts": [{"name": "projects/42/artifacts/old"}]},
    }
    kubeflow_entrypoint._name_models(output, inputs)
    assert blessing["metadata"] == {
        "current_model_id": "projects/42/artifacts/new",
        "baseline_model_id": "projects/42/artifacts/old",
        "blessed": 1.0,
    }


def write_ratings(folder):
    """Writes ratings of films in two groups of taste, each user in one."""
    folder.mkdir(parents=True)
    chance, rows = random.Random(7), set()
    while len(rows) < 900:
        user, item = chance.randrange(40), chance.randrange(15)
        item += user % 2 * 15
        rows.add(f"u{user:02},i{item:02},{10**9 + chance.randrange(50 * 86_400)}")
    (folder / "ratings.csv").write_text("\n".join(["user,item,time", *sorted(rows)]) + "\n")
    films = [f"i{i:02},Film {i},{('comedy', 'crime')[i % 2]}|drama" for i in range(30)]
    (folder / "films.csv").write_text("\n".join(["id,name,genres", *films]) + "\n")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # A step's process would not make errors of them.
def test_the_compiled_job_runs_two_nights(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    from kubeflow_platform_stand_in import Job

    write_ratings(tmp_path / "gcs/bucket")
    job = tmp_path / "pipeline.json"
    kubeflow.compile_pipeline(write(tmp_path, "gs://bucket", warm_start="{}"), IMAGE, job)
    text = job.read_text().replace("/gcs/bucket", str(tmp_path / "gcs/bucket"))
    monkeypatch.setenv("RECSYS_GCS_MOUNT", str(tmp_path / "gcs"))
    world = []
    for night in ("night-1", "night-2"):
        made = Job(json.loads(text), tmp_path / "gcs", night, world, {"DataGate"}).run()
        (blessing,) = made["RetrievalEvaluator", "blessing"]
        (model,) = made["Trainer", "model"]
        assert blessing["metadata"]["current_model_id"] == model["name"]
        training = tmp_path / "gcs" / model["uri"].removeprefix("gs://") / "training.json"
        warm = json.loads(training.read_text())["warm_start"]
        assert (warm is not None and "base" in warm) == (night == "night-2")
    # The second one was compared with the first one, and went on from it.
    (first,) = [one for one in world if "night-1-Trainer-model" in one["name"]]
    assert blessing["metadata"]["baseline_model_id"] == first["name"]
    served = tmp_path / "gcs/bucket/recsys/serving/tiny"
    assert (served / "1/manifest.json").is_file()


PLUGIN = """
from recsys.data.sources.csv_source import CsvSource
from recsys.registry import register_source

@register_source("shop_csv")
class ShopCsv(CsvSource):
    title = "a file of the shop"
"""


@pytest.mark.thorough
def test_a_step_reads_a_source_that_a_plugin_defines(tmp_path, monkeypatch):
    from kubeflow_platform_stand_in import Job

    (tmp_path / "shop_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # The image has it.
    bucket = tmp_path / "gcs" / "bucket"
    bucket.mkdir(parents=True)
    rows = [f"u{n % 7},i{n % 5},{10**9 + n * 1000}\n" for n in range(100)]
    (bucket / "ratings.csv").write_text("user,item,time\n" + "".join(rows))
    changes = {"plugins": "[shop_plugin]", "data.interactions.format": "shop_csv"}
    job = tmp_path / "pipeline.json"
    kubeflow.compile_pipeline(write(tmp_path, "gs://bucket", **changes), IMAGE, job)
    compiled = json.loads(job.read_text().replace("/gcs/bucket", str(bucket)))
    monkeypatch.setenv("RECSYS_GCS_MOUNT", str(tmp_path / "gcs"))
    night = Job(compiled, tmp_path / "gcs", "night", [], apart={"InteractionGen"})
    night._task("InteractionGen", night.spec["root"]["dag"]["tasks"]["InteractionGen"])
    (letters,) = night.outputs["InteractionGen", "dead_letters"]
    folder = tmp_path / "gcs" / letters["uri"].removeprefix("gs://")
    assert json.loads((folder / "summary.json").read_text())["good"] == 100

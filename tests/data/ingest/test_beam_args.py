"""Beam's arguments: no runner from the internet, under any name of the local one."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from places import SUPPORT

pytest.importorskip("apache_beam", reason="needs the extra `pipeline`")
from planted_prism import plant

from recsys.config import (
    Config,
    DataConfig,
    InteractionColumns,
    InteractionsConfig,
    ItemColumns,
    ItemsConfig,
)
from recsys.data.features import CategoriesFeature
from recsys.data.ingest.engines import ENGINES, transform_args
from recsys.data.ingest.tasks import LOCAL_RUNNER, with_local_runner

pytestmark = pytest.mark.pipeline

SCRIPT = SUPPORT / "planted_prism.py"


@pytest.fixture
def raw(tmp_path):
    rows = [f"u{n % 3},i{n % 4},{1_700_006_400 + n * 86_400}" for n in range(12)]
    (tmp_path / "events.csv").write_text("\n".join(["user,item,time", *rows]) + "\n")
    (tmp_path / "items.csv").write_text("item,genres\n" + "".join(f"i{n},a|b\n" for n in range(4)))
    return tmp_path


def data(raw):
    """With features: TensorFlow Transform makes them in pipelines of its own."""
    columns = InteractionColumns(user="user", item="item", timestamp="time")
    genres = CategoriesFeature(name="genres", column="genres")
    return DataConfig(
        interactions=InteractionsConfig(files=str(raw / "events.csv"), columns=columns),
        items=ItemsConfig(
            files=str(raw / "items.csv"), columns=ItemColumns(item="item"), features=(genres,)
        ),
        eval_share=0.25,
    )


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--runner=DirectRunner"],
        ["--runner", "direct"],
        ["--runner=apache_beam.runners.direct.direct_runner.SwitchingDirectRunner"],
        ["--runner=DaskRunner", "--runner=directrunner"],
        ["--direct_num_workers=2", "--direct_running_mode=multi_processing"],
        [f"--runner={LOCAL_RUNNER}"],
    ],
    ids=" ".join,
)
def test_every_name_of_the_local_runner_and_none_is_the_one_without_prism(args):
    from apache_beam import Pipeline
    from apache_beam.options.pipeline_options import PipelineOptions

    mapped = with_local_runner(args)
    assert mapped[: len(args)] == args
    runner = Pipeline(options=PipelineOptions(mapped)).runner
    assert type(runner).__name__ == "FnApiRunner"


@pytest.mark.parametrize("runner", ["PrismRunner", "DataflowRunner", "my.own.Runner"])
def test_another_runner_stays(runner):
    args = [f"--runner={runner}", "--direct_num_workers=2"]
    assert with_local_runner(args) == args


POOL = "--environment_type=EXTERNAL"
IN_PROCESS = "--environment_type=LOOPBACK"


@pytest.mark.parametrize(
    ("beam", "runner", "of_tfx", "option"),
    [
        ({}, LOCAL_RUNNER, LOCAL_RUNNER, "--extra_package=none"),
        (
            {"args": ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]},
            LOCAL_RUNNER, LOCAL_RUNNER, "--direct_num_workers=2",
        ),
        (
            {"runner": "dask", "master": "tcp://h:1"},
            ENGINES["dask"].runner, LOCAL_RUNNER, "--dask_client_address=tcp://h:1",
        ),
        ({"runner": "flink", "master": "h:1"}, "PortableRunner", "PortableRunner", IN_PROCESS),
        (
            {"runner": "spark", "master": "h:1", "workers": "h:2"},
            "PortableRunner", "PortableRunner", POOL,
        ),
    ],
    ids=lambda value: value.get("runner", "local") if isinstance(value, dict) else "",
)  # fmt: skip
def test_the_engine_of_a_config_runs_the_steps_without_a_wheel_of_tfx(
    raw, beam, runner, of_tfx, option
):
    """A named package or image keeps TFX from packaging itself."""
    pytest.importorskip("tfx", reason="needs the extra `pipeline`")
    from apache_beam.options.pipeline_options import PipelineOptions
    from tfx.dsl.components.base.executor_spec import BeamExecutorSpec
    from tfx.utils.dependency_utils import make_beam_dependency_flags

    from pipelines.retrieval_pipeline import create_pipeline

    config = Config.model_validate(
        {"name": "tiny", "root": str(raw / "run"), "data": data(raw), "beam": beam}, strict=False
    )
    steps = create_pipeline(config).components
    specs = {s.id.split(".")[0]: s.executor_spec for s in steps}
    args = {n: s.beam_pipeline_args for n, s in specs.items() if isinstance(s, BeamExecutorSpec)}
    assert args.keys() == {"InteractionGen", "ItemGen", "StatisticsGen", "Transform"}
    assert option in args["InteractionGen"]
    of_features = PipelineOptions(transform_args(args["InteractionGen"])).get_all_options()
    assert of_features["runner"] == of_tfx
    for name, of_step in args.items():
        wanted = of_tfx if name in ("StatisticsGen", "Transform") else runner
        assert PipelineOptions(of_step).get_all_options()["runner"] == wanted, name
        if wanted in (LOCAL_RUNNER, "PortableRunner"):
            assert make_beam_dependency_flags(of_step) == of_step, name


@pytest.mark.engines
def test_ingest_never_runs_a_planted_prism(raw):
    threads = ["--direct_num_workers=2", "--direct_running_mode=multi_threading"]
    done = subprocess.run(
        [sys.executable, SCRIPT, raw / "out", data(raw).model_dump_json(), *threads],
        env={**os.environ, "HOME": str(raw / "home")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [False, 0]


@pytest.mark.hosts
@pytest.mark.skipif(os.getuid() != 0, reason="needs root, for a network namespace")
def test_a_whole_run_needs_no_network(tmp_path):
    """In a network namespace of its own, with a loopback device only."""
    pytest.importorskip("tfx", reason="needs the extra `pipeline`")
    plant(tmp_path)
    recsys = f"{shlex.quote(sys.executable)} -m recsys"
    sizes = "--users 150 --items 60 --interactions 4000"
    commands = f"ip link set lo up && {recsys} synth {sizes} --out data"
    commands += f" && {recsys} run data/config.yaml --set train.epochs=2"
    commands += " --json"
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", commands],
        cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert Path(json.loads(done.stdout.splitlines()[-1])["report"]).is_file()
    assert not (tmp_path / "ran").exists()

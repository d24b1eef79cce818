"""The tone of all tests: the backend, several devices, and warnings that count."""

import contextlib
import fcntl
import gc
import os
import runpy
import shutil
import signal
import sys
import time
from importlib import metadata
from pathlib import Path

# Fixtures of several test files, and scripts that tests start.
sys.path.append(str(Path(__file__).parent / "support"))
# Before anything imports Keras or JAX. Processes that a test starts inherit them.
os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
# A test compiles for longer than it computes: LLVM spares its effort, fusions are lowered without
# MLIR, which takes a third of the time, and what is compiled is kept from run to run. Only golden
# tests compile as users do.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    " --xla_cpu_parallel_codegen_split_count=1"  # Cores are busy with other tests.
    # Later versions only have MLIR, and fail at the flag.
    + " --xla_cpu_use_fusion_emitters=false"
    * (metadata.version("jaxlib") < "0.11")
)
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
# Each core has a worker of its own: threads of BLAS and TensorFlow would wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "recsys-tests")),
)
# With a limit, each write reads when each entry was used last: .2 s where 3,600 are kept.
os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = "-1"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.03"
os.environ.pop("RECSYS_EVENTS", None)
# Processes of tests start with `startup/sitecustomize.py`; this process runs it below.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent / "startup"), os.environ.get("PYTHONPATH")])
)

import hypothesis
import pytest

runpy.run_path(str(Path(__file__).parent / "startup" / "sitecustomize.py"))
hypothesis.settings.register_profile(
    "recsys", deadline=None, max_examples=25, derandomize=True, database=None
)
hypothesis.settings.load_profile("recsys")


@pytest.fixture(params=[signal.SIGTERM, signal.SIGINT])
def heard_signal(request):
    """A signal that ends a program; it may be ignored, as under nohup, but not in the test."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def no_layout_stays():
    """A test that lays a model out on a mesh leaves no mesh to the next one."""
    yield
    if "keras" in sys.modules:
        sys.modules["keras"].distribution.set_distribution(None)


@pytest.fixture(autouse=True, scope="module")
def no_program_stays():
    """Lets go of what a file's tests compiled: of all files it would be 10 GB."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


def pytest_sessionstart():
    """Drops what was compiled more than 14 days ago, which nothing else does."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        long_ago = time.time() - 14 * 24 * 3600
        for file in Path(os.environ["JAX_COMPILATION_CACHE_DIR"]).glob("jit_*"):
            with contextlib.suppress(FileNotFoundError):  # Another run dropped it.
                if file.stat().st_mtime < long_ago:
                    file.unlink()


def pytest_collection_finish():
    """Leaves its eight devices to this process: what tests start compiles less for one.

    Imported objects, including TensorFlow's and TFX's, are never garbage, so collections skip them.
    """
    if "jax" in sys.modules:
        sys.modules["jax"].devices()
        os.environ["XLA_FLAGS"] = os.environ["XLA_FLAGS"].replace("count=8", "count=1")
    gc.collect()
    gc.freeze()


def made_once(tmp_path_factory, name, make):
    """Returns a folder that `make` fills, once for all processes of a run."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder, is_made = base / name, base / f"{name}.made"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            is_made.touch()
    return folder


@pytest.fixture(scope="session")
def exported_world(tmp_path_factory):
    """A small model in both its forms with its data."""
    from system_worlds import make_world, world_in

    return world_in(made_once(tmp_path_factory, "world", make_world))


@pytest.fixture(scope="session")
def part_run(tmp_path_factory):
    """A first `recsys run`, to go on from in `first`; `copy` stays as it is."""
    from golden_runs import make_run

    def make(folder):
        (folder / "first").mkdir()
        make_run("part", folder / "first")
        shutil.copytree(folder / "first", folder / "copy", symlinks=True)

    pytest.importorskip("tfx", reason="needs the extra `pipeline`")
    return made_once(tmp_path_factory, "part", make)


@pytest.fixture(scope="session")
def pair_data(tmp_path_factory):
    """The data folder of pairs."""
    from pair_worlds import make_data

    return made_once(tmp_path_factory, "pair_data", make_data) / "data"


@pytest.fixture(scope="session")
def trained_pair(tmp_path_factory, pair_data):
    """The folder of a small pair that was trained on `pair_data`."""
    from pair_worlds import make_pair

    def make(folder):
        make_pair(folder / "pair", pair_data)

    return made_once(tmp_path_factory, "trained_pair", make) / "pair"


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The data folder of small trainings."""
    from training_runs import write_data

    return made_once(tmp_path_factory, "training_data", write_data)


def pytest_collection_modifyitems(items):
    """Puts files with slow tests first: a long one at the end would leave a core idle."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)

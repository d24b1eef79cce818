"""The tone of all tests: the backend, several devices, and warnings that count."""

import fcntl
import os
import signal
import sys
from pathlib import Path

# What several files of tests share.
sys.path.append(str(Path(__file__).parent / "golden"))
sys.path.extend(
    str(Path(__file__).parent / f"test_{name}_scripts")
    for name in (
        "data",
        "embedding",
        "batches",
        "baselines",
        "training",
        "report",
        "evaluate",
        "systems",
        "tensorflow",
        "telling",
        "shapes",
        "splits",
        "hostile",
        "runs",
    )
)
# Before anything imports Keras or JAX. Processes that a test starts inherit them.
os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
# A test compiles for longer than it computes: LLVM spares its effort, and what is compiled is
# kept from run to run. Golden tests alone compile as users do.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "recsys-tests")),
)
os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(2 * 1024**3)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
os.environ.pop("RECSYS_EVENTS", None)

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "recsys", deadline=None, max_examples=50, derandomize=True, database=None
)
hypothesis.settings.load_profile("recsys")


@pytest.fixture(params=[signal.SIGTERM, signal.SIGINT])
def heard_signal(request):
    """A signal that ends a program; it may be ignored, as under nohup, but not in the test."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


def pytest_collection_finish():
    """Leaves its eight devices to this process: what tests start compiles less for one."""
    if "jax" in sys.modules:
        sys.modules["jax"].devices()
        os.environ["XLA_FLAGS"] = os.environ["XLA_FLAGS"].replace("count=8", "count=1")


@pytest.fixture(scope="session")
def exported_world(tmp_path_factory):
    """A small model in both its forms with its data, made once for all processes of a run."""
    from system_worlds import make_world, world_in

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / "world.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        world = world_in(folder / "world")
        return world if world.bundle.exists() else make_world(folder / "world")


def pytest_collection_modifyitems(items):
    """Puts files with slow tests first: a long one at the end would leave a core idle."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)

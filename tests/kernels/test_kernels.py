"""How the C kernels are chosen, refused and done without."""

import copy
import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import kernel_calls
import pytest

from recsys import kernels
from recsys.errors import RecsysError, UsageError

needs_kernels = pytest.mark.skipif(
    not kernels.status().available, reason=kernels.status().reason or "available"
)
STATUS = """
import json
from recsys import kernels
from recsys.errors import RecsysError
try:
    state, warning = kernels.status(), kernels.warning()
    print(json.dumps({"available": state.available, "reason": state.reason, "warning": warning}))
except RecsysError as error:
    print(json.dumps({"error": error.code, "text": str(error)}))
"""


def status_in_a_process(package, **environment):
    """Returns what `status` says in a fresh process that imports `recsys` from `package`."""
    done = subprocess.run(
        [sys.executable, "-c", STATUS], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(package), **environment}, cwd=package,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.fixture
def package(tmp_path):
    """Returns a folder with a copy of the package that has no libraries."""
    source = Path(kernels.__file__).parent.parent
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(source, tmp_path / "recsys", ignore=ignored)
    return tmp_path


def test_every_handler_and_self_check_of_the_sources_is_known():
    sources = "".join(path.read_text() for path in Path(kernels.__file__).parent.glob("*.c"))
    for name in kernels.HANDLERS:
        assert f"RECSYS_HANDLER({name})" in sources
    assert sources.count("\nRECSYS_HANDLER(") == len(kernels.HANDLERS)
    assert sources.count("\nRECSYS_SELF_CHECK(") == len(kernels.SELF_CHECKS)


@needs_kernels
@pytest.mark.parametrize("variant", kernels.built())
def test_every_library_that_runs_here_checks_itself(variant):
    library = ctypes.CDLL(str(kernels.built()[variant]))
    # The names also say that no object was compiled for another kind of processor.
    for name in kernels.SELF_CHECKS:
        assert getattr(library, f"recsys_{name}_self_check_{variant}")() == 0


@needs_kernels
def test_the_fastest_library_that_the_processor_can_run_is_loaded(monkeypatch):
    assert kernels.status().path == next(iter(kernels.built().values()))
    monkeypatch.setattr(kernels, "_processor_features", set)
    assert list(kernels.built()) == ["generic"]


def test_a_package_without_libraries_says_so(package):
    state = status_in_a_process(package)
    assert not state["available"]
    assert "built without a C compiler" in state["reason"]
    assert state["reason"] in state["warning"]
    # Who switched them off knows.
    assert status_in_a_process(package, RECSYS_NATIVE="0")["warning"] is None


@needs_kernels
def test_a_library_that_is_wrong_is_passed_over(package):
    folder = package / "recsys" / "kernels"
    fastest, *others = kernels.built().values()
    (folder / fastest.name).write_bytes(b"no library")
    state = status_in_a_process(package)
    assert not state["available"]
    assert fastest.name in state["reason"]
    for path in others:
        shutil.copy(path, folder)
    assert status_in_a_process(package) == {
        "available": bool(others),
        "reason": "",
        "warning": None,
    }


def test_the_switch_turns_the_kernels_off(monkeypatch):
    monkeypatch.setenv("RECSYS_NATIVE", "0")
    assert kernels.status() == kernels.KernelStatus(False, "RECSYS_NATIVE=0")
    assert not kernels.available()
    with pytest.raises(RecsysError, match=r"R343.*RECSYS_NATIVE=0"):
        kernels.library()


def test_the_switch_makes_their_absence_an_error(package):
    state = status_in_a_process(package, RECSYS_NATIVE="1")
    assert state["error"] == "R340"
    assert "built without a C compiler" in state["text"]


@needs_kernels
def test_the_switch_changes_nothing_where_they_are(monkeypatch):
    monkeypatch.setenv("RECSYS_NATIVE", "1")
    assert kernels.status().available


def test_the_switch_has_no_third_position(monkeypatch):
    monkeypatch.setenv("RECSYS_NATIVE", "yes")
    with pytest.raises(UsageError, match="R341"):
        kernels.status()


@needs_kernels
def test_kernels_are_not_used_where_jax_computes_elsewhere(monkeypatch):
    import jax

    assert kernels.available()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not kernels.available()


# --- inconsistent shapes


needs_kernels = pytest.mark.skipif(not kernels.status().available, reason=kernels.status().reason)

SIZES = {"R": 11, "D": 4, "n": 6, "m": 6, "w": 6, "B": 3, "b": 3, "N": 7, "P": 2, "q": 7}


def changed_arrays(call):
    """Yields the call with one array changed: its type, then its last size or its rank."""
    for part in ("arguments", "results"):
        for at, (dtype, shape) in enumerate(call[part]):
            for array in (
                ("float16", shape),
                (dtype, [*shape[:-1], shape[-1] + 1] if shape else [1]),
            ):
                other = copy.deepcopy(call)
                other[part][at] = list(array)
                yield other


@needs_kernels
@pytest.mark.parametrize("variant", kernel_calls.VARIANTS)
def test_arrays_that_fit_are_taken(variant):
    call = kernel_calls.right_call(variant, SIZES)
    assert kernel_calls.is_right(call)
    assert kernel_calls.error_of(call) is None


@needs_kernels
@pytest.mark.parametrize(
    "variant",
    [
        "pool",
        "weight_grad",
        "sum_squares",
        "candidate_loss with gradients",
        "update row_wise_adagrad",
        "update lazy_adam",
    ],
)
def test_an_array_of_another_type_or_shape_is_refused(variant):
    calls = list(changed_arrays(kernel_calls.right_call(variant, SIZES)))
    wrong = [call for call in calls if not kernel_calls.is_right(call)]
    assert len(calls) - len(wrong) <= 1  # A width that is one array's alone may be any.
    for call in wrong:
        assert "recsys: " in (kernel_calls.error_of(call) or ""), call


@needs_kernels
@pytest.mark.parametrize(("dim", "width"), [(256, 2), (48, 16), (7, 16)])
def test_a_candidate_of_another_width_than_the_query_is_refused(dim, width):
    call = kernel_calls.right_call("candidate_loss with gradients", {**SIZES, "D": dim})
    call["arguments"][1][1][1] = width
    call["results"][2][1][1] = width
    assert "candidate must be float32" in kernel_calls.error_of(call)


@needs_kernels
def test_numbers_of_arrays_and_optimizers_that_are_none_are_refused():
    for n_left in (3, 0):
        call = kernel_calls.right_call("pool", SIZES)
        del call["arguments"][n_left:]
        assert "recsys: " in kernel_calls.error_of(call)
    for number in (-1, 5, float("nan"), 1e300):
        call = kernel_calls.right_call("update sgd", SIZES)
        call["attributes"]["optimizer"] = number
        assert "no such optimizer" in kernel_calls.error_of(call)

"""The kernels refuse arrays of inconsistent shapes, instead of reading or writing past them."""

import copy

import kernel_calls
import pytest

from recsys import kernels

pytestmark = pytest.mark.skipif(not kernels.status().available, reason=kernels.status().reason)

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


@pytest.mark.parametrize("variant", kernel_calls.VARIANTS)
def test_arrays_that_fit_are_taken(variant):
    call = kernel_calls.right_call(variant, SIZES)
    assert kernel_calls.is_right(call)
    assert kernel_calls.error_of(call) is None


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


@pytest.mark.parametrize(("dim", "width"), [(256, 2), (48, 16), (7, 16)])
def test_a_candidate_of_another_width_than_the_query_is_refused(dim, width):
    call = kernel_calls.right_call("candidate_loss with gradients", {**SIZES, "D": dim})
    call["arguments"][1][1][1] = width
    call["results"][2][1][1] = width
    assert "candidate must be float32" in kernel_calls.error_of(call)


def test_numbers_of_arrays_and_optimizers_that_are_none_are_refused():
    for n_left in (3, 0):
        call = kernel_calls.right_call("pool", SIZES)
        del call["arguments"][n_left:]
        assert "recsys: " in kernel_calls.error_of(call)
    for number in (-1, 5, float("nan"), 1e300):
        call = kernel_calls.right_call("update sgd", SIZES)
        call["attributes"]["optimizer"] = number
        assert "no such optimizer" in kernel_calls.error_of(call)

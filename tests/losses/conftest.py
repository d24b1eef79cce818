"""Fixtures of the tests of losses."""

import pytest
from softmax_reference import use_kernels


@pytest.fixture(params=["native", "blocks"])
def kernels(request, monkeypatch):
    use_kernels(request.param, monkeypatch)
    return request.param

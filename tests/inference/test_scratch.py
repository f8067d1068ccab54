"""Working memory that calls use one after another."""

import numpy as np
import pytest
from samplehold.inference.numerics import scratch as module
from samplehold.inference.numerics.lanes import BYTES
from samplehold.inference.numerics.scratch import scratch

DOUBLE = np.dtype(np.float64)


@pytest.fixture(autouse=True)
def nothing_spare(monkeypatch):
    monkeypatch.setattr(module, "_spare", [])


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float64)])
def test_it_is_as_large_as_asked_and_begins_where_a_vector_may(dtype):
    for n in (7, 0, 100):
        with scratch(n, dtype) as memory:
            assert memory.shape == (n,)
            assert memory.dtype == dtype
            assert memory.ctypes.data % BYTES == 0 or n == 0
            memory[:] = 1.0


def test_one_after_another_share_it_and_calls_at_once_do_not():
    with scratch(50, DOUBLE) as first, scratch(50, DOUBLE) as second:
        assert first.ctypes.data != second.ctypes.data
    with scratch(40, DOUBLE) as third:
        assert third.ctypes.data in (first.ctypes.data, second.ctypes.data)


def test_neither_what_is_large_nor_what_an_error_left_is_kept(monkeypatch):
    with pytest.raises(KeyError), scratch(3, DOUBLE):
        raise KeyError  # threads may still be at work in it
    assert module._spare == []
    monkeypatch.setattr(module, "_MOST", 80)
    with scratch(11, DOUBLE):
        pass
    assert module._spare == []
    with scratch(10, DOUBLE):
        pass
    assert len(module._spare) == 1

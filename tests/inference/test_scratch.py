"""Working memory that calls use one after another."""

import pytest
import torch
from samplehold.inference.numerics import scratch as module
from samplehold.inference.numerics.lanes import BYTES
from samplehold.inference.numerics.scratch import scratch


@pytest.fixture(autouse=True)
def nothing_spare(monkeypatch):
    monkeypatch.setattr(module, "_spare", [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_as_large_as_asked_and_begins_where_a_vector_may(dtype):
    for n in (7, 0, 100):
        with scratch(n, dtype) as memory:
            assert memory.shape == (n,)
            assert torch.from_numpy(memory).dtype == dtype
            assert memory.ctypes.data % BYTES == 0 or n == 0
            memory[:] = 1.0


def test_one_after_another_share_it_and_calls_at_once_do_not():
    with scratch(50, torch.float64) as first, scratch(50, torch.float64) as second:
        assert first.ctypes.data != second.ctypes.data
    with scratch(40, torch.float64) as third:
        assert third.ctypes.data in (first.ctypes.data, second.ctypes.data)


def test_neither_what_is_large_nor_what_an_error_left_is_kept(monkeypatch):
    with pytest.raises(KeyError), scratch(3, torch.float64):
        raise KeyError  # threads may still be at work in it
    assert module._spare == []
    monkeypatch.setattr(module, "_MOST", 80)
    with scratch(11, torch.float64):
        pass
    assert module._spare == []
    with scratch(10, torch.float64):
        pass
    assert len(module._spare) == 1

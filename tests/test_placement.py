"""The options `--device` and `--dtype`, and the device that is not there."""

import numpy as np
import pytest
import samplehold as sh
import torch
from oracles.fake_gpu import FakeTensor, fake_gpu, waits
from oracles.placement import placed, tolerances
from torch.testing import assert_close


def test_tensors_of_tests_lie_where_the_option_says(device, dtype):
    x = torch.randn(3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    assert x.device.type == device.type
    assert_close(x + x, 2 * x, **tolerances(dtype))


@pytest.mark.cpu("it sets up a device of its own")
def test_on_another_device_what_tests_make_lies_there_and_what_the_library_makes_where_it_puts_it():
    with placed("fake") as there:
        x, seeded = torch.zeros(2, 5, 3), torch.randn(2, generator=torch.Generator().manual_seed(0))
        weights = torch.zeros(3, requires_grad=True)
        assert x.device == seeded.device == weights.device == there
        assert weights.is_leaf
        assert x.mean().numpy() == 0
        assert torch.from_numpy(np.ones(2)).device == there
        assert torch.equal(weights, torch.zeros(3, device="cpu"))
        assert torch.zeros(1, device="cpu").device.type == "cpu"
        drawn = sh.CopyChain(None, x, x).sample(2, torch.Generator().manual_seed(0))
        assert drawn.path.device == there
        layer = sh.MinGRU(3, 4)
        assert {parameter.device for parameter in layer.parameters()} == {there}
        out, _ = layer(x)
        out.sum().backward()
        assert all(parameter.grad.device == there for parameter in layer.parameters())
        torch.testing.assert_close(out.cpu(), out)
    assert torch.zeros(1).device.type == "cpu"


@pytest.mark.cpu("it sets up a device of its own")
def test_a_device_that_is_not_there_refuses_what_a_gpu_refuses_and_counts_what_waits_for_it():
    with fake_gpu() as there:
        x, other = torch.arange(3.0, device=there), torch.arange(3.0)
        assert isinstance(x.exp(), FakeTensor)
        with pytest.raises(RuntimeError, match="same device"):
            x + other
        with pytest.raises(RuntimeError, match="same device"):
            other[x.long()]
        with pytest.raises(TypeError, match="numpy"):
            x.numpy()
        assert (x @ torch.eye(3, device=there) @ torch.eye(3, device=there)).shape == (3,)
        with pytest.raises(RuntimeError, match="for generator"):
            torch.randn(2, device=there, generator=torch.Generator())
        with waits() as none:
            (x * 2 + 1).cumsum(0).where(x > 1, 0.0)
            x[1:] = 4.0
            torch.linalg.cholesky_ex(torch.eye(2, device=there))
        assert none == []
        for look in (
            lambda: float(x[0]),
            lambda: x.tolist(),
            lambda: bool(x.any()),
            lambda: x.cpu(),
            lambda: other.to(there),
            lambda: torch.tensor([1.0], device=there),
            lambda: x[x > 1],
            lambda: x[torch.tensor([0, 1])],
            lambda: x.nonzero(),
            lambda: torch.linalg.cholesky(torch.eye(2, device=there)),
        ):
            with waits() as found:
                look()
            assert len(found) == 1, found

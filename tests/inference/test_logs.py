"""Logarithms of probabilities at their extremes."""

import pytest
import torch
from samplehold.inference.numerics.logs import log_sigmoid
from torch.nn.functional import logsigmoid
from torch.testing import assert_close


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_sigmoid_is_torch_s_in_value_and_derivatives(dtype):
    x = torch.tensor([-1e30, -800.0, -1.0, -1e-9, 0.0, 1e-9, 1.0, 40.0, 800.0, 1e30], dtype=dtype).requires_grad_()
    assert_close(log_sigmoid(x), logsigmoid(x), rtol=2 * torch.finfo(dtype).eps, atol=0)
    (once,) = torch.autograd.grad(log_sigmoid(x).sum(), x, create_graph=True)
    assert_close(once, (-x).sigmoid(), rtol=1e-6 if dtype is torch.float32 else 1e-14, atol=0)
    (twice,) = torch.autograd.grad(once.sum(), x)
    assert_close(twice, -x.sigmoid() * (-x).sigmoid(), rtol=1e-6 if dtype is torch.float32 else 1e-14, atol=1e-300)

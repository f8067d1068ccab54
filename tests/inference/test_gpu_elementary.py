"""Elementary functions of the kernels for GPUs: right to the rounding of their format, in the tails as well."""

import pytest
import torch
from oracles.gpu import gpu_kernels
from torch.testing import assert_close

pytest.importorskip("triton")

from samplehold.inference.numerics.gpu import constexpr, kernel, launch, tl
from samplehold.inference.numerics.gpu_elementary import exp, sigmoids, tanh

pytestmark = pytest.mark.hardware("Triton interprets or compiles")


@kernel
def values(x, out, LANES: constexpr):
    at = tl.arange(0, LANES)
    given = tl.load(x + at)
    tl.store(out + at, exp(tl.minimum(given, 0.0, propagate_nan=tl.PropagateNan.ALL)))
    tl.store(out + LANES + at, sigmoids(given)[0])
    tl.store(out + 2 * LANES + at, tanh(given))


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 3e-7), (torch.float64, 1e-15)])
def test_elementary_functions_are_close_to_rounding_in_relative_terms(dtype, bound):
    edges = torch.tensor([0.0, -0.0, -87.3, 87.3, -1e-30, torch.inf, -torch.inf, torch.nan])
    x = torch.cat([torch.linspace(-87, 80, 56), edges]).to(dtype)
    out = x.new_empty(3, len(x))
    with gpu_kernels():
        launch(values, (1,), x, out, LANES=len(x))
    exact = x.double()
    for ours, theirs in zip(out, (exact.clamp(max=0).exp(), exact.sigmoid(), exact.tanh()), strict=True):
        assert_close(ours.double(), theirs, rtol=bound, atol=0, equal_nan=True)

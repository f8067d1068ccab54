"""`torch.compile` takes the operators of chains whole, in value and gradient."""

import pytest
import torch
from samplehold.inference.chains.copy import op as copy
from samplehold.inference.chains.factored_copy import op as factored
from samplehold.inference.chains.markov import op as markov
from torch.testing import assert_close

K, T = 3, 6
SHAPES = {
    "markov": (markov.posterior, ((K,), (1, K, K), (2, T, K))),
    "copy": (copy.smooth, (None, (2, T, K), (2, T, K))),
    "factored": (factored.posterior, ((1,), (1,), (K,), (2, T, K))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.cpu("torch's compiler knows few devices")
def test_operators_are_compiled_whole(name):
    operator, shapes = SHAPES[name]
    generator = torch.Generator().manual_seed(0)
    tables = [s and torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]
    leaves = [table for table in tables if table is not None]
    found = []
    for form in (operator, torch.compile(lambda *given: operator(*given), fullgraph=True, backend="aot_eager")):
        *results, failed = form(*tables, torch.tensor([T, T - 2]))
        gradient = torch.autograd.grad(sum(result.square().sum() for result in results), leaves)
        found.append([*results, failed, *gradient])
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours, theirs, rtol=1e-12, atol=1e-12)

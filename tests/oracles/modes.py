"""The end of EM beside direct ascent."""

import samplehold as sh
import torch
from samplehold.switching.emissions.ascent import ascend
from torch.testing import assert_close


def assert_at_the_mode(fit: sh.Fit, x: torch.Tensor) -> None:
    """EM never fell, its objective is the log joint, and BFGS from its end rises by less than 1e-4 nats."""
    assert float(fit.objective.diff().min()) > -1e-9 * abs(float(fit.objective[-1]))
    values, known = fit.model.values, fit.model.known
    assert_close(fit.objective[-1], fit.model.log_evidence(x) + fit.model.log_prior(values), rtol=1e-9, atol=1e-9)

    def height(some: dict) -> torch.Tensor:
        return fit.model._copy(some).log_evidence(x) + fit.model.log_prior(some)

    best = ascend(height, values, {name: parameter.support for name, parameter in known.items()})
    assert float(height(best)) - float(fit.objective[-1]) < 1e-4

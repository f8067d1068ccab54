"""The length of a fit, in the words of its method, and of the way to its start."""

import pytest
from samplehold.switching.slds import starts


def effort(method: str, n: int) -> dict[str, int]:
    """n steps, or n draws of a sampler."""
    return {"num_samples": n} if method == "nuts" else {"max_steps": n}


def short_starts(patch: pytest.MonkeyPatch) -> None:
    """Switching linear models start after few sweeps at few temperatures."""
    for name, number in {"SWEEPS": 2, "WARM": 2, "HOT": (1.02, 1.01, 1.0)}.items():
        patch.setattr(starts, name, number)

"""How many examples hypothesis tries: a property says how many it needs, a quick run takes a few of them."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

QUICK, THOROUGH = 6, 20  # at most, in a run without the tests marked `slow`; at most unless a property asks for more

for name, count in {"quick": QUICK, "thorough": THOROUGH}.items():
    settings.register_profile(
        name, max_examples=count, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )


def examples(n: int) -> settings:
    """Decorates a property: n examples in a thorough run, and no more than `QUICK` in a quick one."""
    return settings(max_examples=min(n, QUICK) if settings.get_current_profile_name() == "quick" else n)


def slow(*values: Any) -> Any:
    """Values of a parametrised test that only a thorough run takes."""
    return pytest.param(*values, marks=pytest.mark.slow)

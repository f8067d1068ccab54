"""Checks every jaxtyping annotation of the package while it is tested, and seeds nothing globally."""

from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

install_import_hook("samplehold", "typechecker.check")

settings.register_profile(
    "samplehold", max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("samplehold")

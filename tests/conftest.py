"""Checks every jaxtyping annotation of the package while it is tested, and seeds nothing globally."""

import os

import torch
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

install_import_hook("samplehold", "typechecker.check")

settings.register_profile(
    "samplehold", max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("samplehold")

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the processors; threads that wait for each other would fight
    torch.set_num_threads(1)

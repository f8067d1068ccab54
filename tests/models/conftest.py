"""What several tests of models use."""

import pytest
import torch


@pytest.fixture(scope="module")
def one_thread():
    """Many small operators: two threads would wait for each other more than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

"""Functions that need gradients, called where torch keeps none."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def needs_gradients(function: Function) -> Function:
    """A function that leaves `torch.no_grad` and `torch.inference_mode` while it runs. Where there is no inference
    mode, it leaves none: torch would set the threads of the backward pass too."""

    @wraps(function)
    def outside(*arguments: Any, **named: Any) -> Any:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                return function(*arguments, **named)
        with torch.enable_grad():
            return function(*arguments, **named)

    return cast(Function, outside)

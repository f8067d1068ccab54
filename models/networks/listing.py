"""The names that editors and notebooks offer for a network: its own, and those of torch that its users need."""

from torch import nn

NEEDED = (
    *("forward", "train", "eval", "parameters", "named_parameters", "buffers", "modules", "children"),
    *("state_dict", "load_state_dict", "zero_grad", "requires_grad_", "reset_parameters", "flatten_parameters"),
    *("register_forward_hook", "to", "cpu", "cuda", "float", "double", "compile"),
)
"""Methods of torch's modules that stay in the list."""

LEFT_OUT = {name for name in dir(nn.RNNBase) if not name.startswith("_")} - set(NEEDED)


class Listed(nn.Module):
    """A module whose `dir`, and so completion in notebooks, leaves out most methods of torch's modules.

    They can be called as ever.
    """

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in LEFT_OUT]

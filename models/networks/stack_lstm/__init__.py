"""An LSTM cell that drives superposition stacks, all steps at once: the function to call is in `op`."""

from ....inference.numerics.op import load_kernels

load_kernels(__name__)

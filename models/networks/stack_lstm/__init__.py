"""An LSTM cell that drives superposition stacks, all steps at once: the function to call is in `op`."""

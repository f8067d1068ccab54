"""Linear recurrences h_t = a_t h_{t-1} + b_t: the functions to call are in `op`."""

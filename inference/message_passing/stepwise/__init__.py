"""Message passing one step at a time: mean field on the gate and the state of each step; see `op.filter_steps`."""

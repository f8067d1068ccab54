"""The weighted pushdown recursion, for stacks whose actions have any weights or whose top is observed: see `op`."""

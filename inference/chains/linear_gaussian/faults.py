"""What can go wrong in a sequence: `fault` is 4 times the step plus one of these, or -1."""

OVERFLOW = 0  # a variance is not finite
SINGULAR = 1  # a feature without noise of its own, or that others fix
OPEN = 2  # the observations do not determine all diffuse states

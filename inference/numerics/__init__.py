"""What every room uses: operators and their kernels, threads, vectors and exponentials for kernels, checks, randomness.

Nothing here knows a model. `op` has the one way in which an algorithm becomes a torch operator.
"""

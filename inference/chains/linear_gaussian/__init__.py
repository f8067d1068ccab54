"""Linear Gaussian chains, whose state is a real vector: the class is `chain.LinearGaussianChain`."""

"""Polya-Gamma numbers on the CPU, one at a time; see `polya_gamma`."""

import math

import numpy as np

from ...numerics.compilation import inlined, kernel
from .polya_gamma import CUT, FAR


@inlined
def uniform(stream):
    """The next number in (0, 1) of a stream of Steele, Lea & Flood's SplitMix, which is an array of one number."""
    stream[0] += np.uint64(0x9E3779B97F4A7C15)
    bits = stream[0]
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return (float(bits >> np.uint64(11)) + 0.5) * 2.0**-53


@inlined
def _normal(stream):
    return math.sqrt(-2.0 * math.log(uniform(stream))) * math.cos(2.0 * math.pi * uniform(stream))


@inlined
def _left(z, stream):
    """An inverse Gaussian number of mean 1 / z and shape 1, given that it is less than the cut."""
    if z < 1.0 / CUT:
        while True:
            a, b = -math.log(uniform(stream)), -math.log(uniform(stream))
            if a * a <= 2.0 * b / CUT:
                x = CUT / ((1.0 + CUT * a) * (1.0 + CUT * a))
                if uniform(stream) <= math.exp(-0.5 * z * z * x):
                    return x
    mean = 1.0 / z
    while True:
        y = _normal(stream)
        y = mean * y * y
        x = mean / (1.0 + 0.5 * y + math.sqrt(y + 0.25 * y * y))
        if uniform(stream) > mean / (mean + x):
            x = mean * mean / x
        if x < CUT:
            return x


@inlined
def _term(n, x):
    """The n-th term of the density of J*(1, 0)."""
    k = n + 0.5
    if x > CUT:
        return math.pi * k * math.exp(-0.5 * k * k * math.pi * math.pi * x)
    return math.pi * k * math.exp(1.5 * (math.log(2.0 / math.pi) - math.log(x)) - 2.0 * k * k / x)


@inlined
def _polya_gamma(c, stream):
    z = 0.5 * abs(c)
    rate = math.pi * math.pi / 8.0 + 0.5 * z * z
    right = 0.0
    if z < FAR:
        root = math.sqrt(0.5 / CUT)
        below = 0.5 * math.erfc(-(CUT * z - 1.0) * root)
        below += 0.5 * math.exp(2.0 * z) * math.erfc((CUT * z + 1.0) * root)
        tail = 0.5 * math.pi / rate * math.exp(-rate * CUT)
        right = tail / (tail + 2.0 * math.exp(-z) * below)
    while True:
        x = CUT - math.log(uniform(stream)) / rate if uniform(stream) < right else _left(z, stream)
        total, n = _term(0, x), 0
        bound = uniform(stream) * total
        while True:
            n += 1
            if n % 2:
                total -= _term(n, x)
                if bound <= total:
                    return 0.25 * x
            else:
                total += _term(n, x)
                if bound > total:
                    break


@kernel
def polya_gamma(part, c, seeds, drawn):
    """PG(1, c) of each row [N, M], from a stream of its own."""
    stream = np.empty(1, np.uint64)
    for b in range(part[0], part[1]):
        stream[0] = np.uint64(seeds[b])
        for i in range(c.shape[1]):
            drawn[b, i] = _polya_gamma(c[b, i], stream)

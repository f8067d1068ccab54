r"""Colours of states: from dark to light in perceptually even steps, with different hues for neighbours.

Colours are points of CIELAB, $L^* = $ lightness, $a^* + i b^* = C e^{ih}$, whose distances are perceived distances (CIE
15:2004). Lightness alone distinguishes all states, in grey and for colour-blind readers. The hue turns by the golden
angle from one state to the next, so neighbours of many states stay far apart.
"""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from numpy import ndarray

DARKEST, LIGHTEST, CHROMA = 27.0, 72.0, 62.0
FIRST_HUE, GOLDEN = 295.0, 180 * (3 - math.sqrt(5))  # degrees
WHITE = np.array([0.95047, 1.0, 1.08883])  # D65
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
FROM_XYZ = np.array([[3.2406, -1.5372, -0.4986], [-0.9689, 1.8758, 0.0415], [0.0557, -0.2040, 1.0570]])


def state_colors(levels: ndarray) -> list[str]:
    """A colour for each state, from dark to light in the order of their levels."""
    n = len(levels)
    lightness = np.linspace(DARKEST, LIGHTEST, n).tolist() if n > 1 else [45.0]
    ranks = np.argsort(np.argsort(levels, kind="stable"), kind="stable")
    return [_vivid(lightness[rank], FIRST_HUE + GOLDEN * rank) for rank in ranks.tolist()]


def from_dark_to_light(colors: Sequence[str]) -> list[int]:
    """The numbers of the colours, the darkest first."""
    shares = np.array([to_rgb(color) for color in colors])
    linear = np.where(shares > 0.04045, ((shares + 0.055) / 1.055) ** 2.4, shares / 12.92)
    return np.argsort(linear @ LUMINANCE, kind="stable").tolist()


def _vivid(lightness: float, hue: float) -> str:
    """The colour of this lightness and hue with the most chroma that a screen can show, up to `CHROMA`."""
    chromas = np.linspace(CHROMA, 0, 63)
    angle = math.radians(hue)
    inside = [_to_rgb(lightness, c * math.cos(angle), c * math.sin(angle)) for c in chromas]
    r, g, b = next((rgb for rgb in inside if ((rgb >= 0) & (rgb <= 1)).all()), inside[-1].clip(0, 1)).tolist()
    return to_hex((r, g, b))


def _to_rgb(lightness: float, a: float, b: float) -> ndarray:
    """CIELAB as sRGB, outside [0, 1] if a screen cannot show the colour."""
    y = (lightness + 16) / 116
    roots = np.array([y + a / 500, y, y - b / 200])
    linear = FROM_XYZ @ (WHITE * np.where(roots > 6 / 29, roots**3, (roots - 4 / 29) * 3 * (6 / 29) ** 2))
    return np.where(linear > 0.0031308, 1.055 * np.abs(linear) ** (1 / 2.4) - 0.055, 12.92 * linear)

"""Public calls, by room: `CALLS` maps the name of a call to a function without arguments.

What a call returns is summarised by `summaries.summary`; a call that fails returns its error.
"""

import golden.fits
import golden.networks  # noqa: F401  both add their calls
from golden.kinds import CALLS
from golden.wrong import WRONG

CALLS |= {f"wrong: {name}": make for name, make in WRONG.items()}

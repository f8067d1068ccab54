"""What is now in `compilation` and `threads`, until everything imports it from there."""

from .compilation import exact_kernel as exact_kernel
from .compilation import kernel as kernel
from .threads import in_parallel as in_parallel
from .threads import ranges as ranges

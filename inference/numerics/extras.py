"""Optional libraries, which extras of the package install."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(library: str, extra: str) -> Iterator[None]:
    """A block of imports. If the library is missing, the error names the extra that installs it.

    >>> with needs("a-library", "machines"):
    ...     import a_library
    Traceback (most recent call last):
    ModuleNotFoundError: a-library is not installed; pip install 'samplehold[machines]' installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{library} is not installed; pip install 'samplehold[{extra}]' installs it.", name=error.name
        ) from None

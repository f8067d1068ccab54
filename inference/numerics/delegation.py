"""Members that an object takes from an object inside it."""

from typing import Any


def delegated(inner: str) -> Any:
    """A member that is the member of the same name of the object in attribute `inner`.

    >>> class Doubled:
    ...     def __init__(self, text):
    ...         self.text = text
    ...
    ...     upper = delegated("text")
    >>> Doubled("ab").upper()
    'AB'
    """
    return _Delegated(inner)


class _Delegated:
    def __init__(self, inner: str) -> None:
        self._inner = inner

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, whole: object, owner: type | None = None) -> Any:
        return self if whole is None else getattr(getattr(whole, self._inner), self._name)

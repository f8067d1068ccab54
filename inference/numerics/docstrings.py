"""Arguments that many methods share are described once; the docstring of each method shows them."""

import re
from functools import cache
from inspect import cleandoc, unwrap
from types import FunctionType

SHARED = "Arguments of methods"
SECTION = re.compile(r"^([A-Z][\w ]*):\n((?:(?: {4}.*)?\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}([*\w]+(?:, [*\w]+)*):(?: .*|$)(?:\n {5}.*)*", re.MULTILINE)
AFTER = re.compile(r"^(?:(?:More|Attributes|Returns|Yields|Raises|See Also|Example):\n|>{3} )", re.MULTILINE)


def share_arguments(kind: type) -> None:
    """Add to the docstrings of a class's methods the entries of arguments that they leave out.

    They are those of the method that it overrides, and those under "Arguments of methods" in the docstring of its
    class or of one above.
    """
    above = [base.__doc__ or "" for base in kind.__mro__]
    shared = [entry for text in above if SHARED in text for entry in _entries(text, SHARED)]
    for name, member in vars(kind).items() if shared else ():
        function = getattr(member, "__func__", member)
        if isinstance(function, FunctionType) and function.__doc__ and not name.startswith("_"):
            overridden = [vars(base)[name].__doc__ or "" for base in kind.__mro__[1:] if name in vars(base)]
            entries = [entry for text in overridden for entry in _entries(text, "Arguments")]
            function.__doc__ = _with(function.__doc__, _arguments(function), entries + shared)


def _arguments(function: FunctionType) -> tuple[str, ...]:
    code = unwrap(function).__code__
    return code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]


@cache
def _entries(text: str, *sections: str) -> list[tuple[list[str], str]]:
    """The entries of sections of a docstring, all by default: the arguments of each, and its text."""
    bodies = [body for name, body in SECTION.findall(cleandoc(text) + "\n") if not sections or name in sections]
    return [(entry[1].replace("*", "").split(", "), entry[0]) for body in bodies for entry in ENTRY.finditer(body)]


def _with(text: str, arguments: tuple[str, ...], entries: list[tuple[list[str], str]]) -> str:
    """A docstring with entries of the arguments that it leaves out, if entries speak of no others."""
    lacking = set(arguments).difference(*(names for names, _ in _entries(text)))
    added = {}
    for names, entry in entries:
        if lacking.intersection(names) and set(names) <= set(arguments):
            added[arguments.index(names[0])] = entry
            lacking.difference_update(names)
    if not added:
        return text
    text, lines = cleandoc(text) + "\n", "".join(f"{added[i]}\n" for i in sorted(added))
    if "\nArguments:\n" in text:
        return text.replace("\nArguments:\n", f"\nArguments:\n{lines}", 1)
    place = AFTER.search(text)
    start = len(text) if place is None else place.start()
    return f"{text[:start].rstrip()}\n\nArguments:\n{lines}\n{text[start:]}".rstrip() + "\n"

"""Checks of symbols and words."""

from collections.abc import Sequence


def check_alphabet(alphabet: object) -> tuple[str, ...]:
    """The symbols of words: one letter each, without duplicates."""
    if not isinstance(alphabet, str | list | tuple):
        raise TypeError(
            f'alphabet: got {type(alphabet).__name__}, expected a string or a list of letters, such as "ab".'
        )
    for symbol in alphabet:
        if not isinstance(symbol, str):
            raise TypeError(f"alphabet: got the symbol {symbol!r}, expected letters.")
        if len(symbol) != 1:
            raise ValueError(f"alphabet: got the symbol {symbol!r}, expected one letter for each symbol.")
    if not alphabet or len(set(alphabet)) < len(alphabet):
        raise ValueError(f"alphabet: got {alphabet!r}, expected at least one symbol, and each only once.")
    return tuple(alphabet)


def check_words(words: object, alphabet: Sequence[str]) -> list[str]:
    """Words of the alphabet."""
    if not isinstance(words, list | tuple):
        got = f"the string {words!r}" if isinstance(words, str) else type(words).__name__
        raise TypeError(f"words: got {got}, expected a list of words, which are strings.")
    return [check_word(word, alphabet, f"words[{number}]") for number, word in enumerate(words)]


def check_word(word: object, alphabet: Sequence[str], name: str = "word") -> str:
    """A word of the alphabet."""
    if not isinstance(word, str):
        raise TypeError(f"{name}: got {type(word).__name__}, expected a string of the letters {''.join(alphabet)!r}.")
    foreign = next((symbol for symbol in word if symbol not in alphabet), None)
    if foreign is not None:
        raise ValueError(
            f"{name}: got {word if len(word) <= 40 else f'{word[:37]}...'!r}, but {foreign!r} is not one of the "
            f"letters {''.join(alphabet)!r}; give words of these."
        )
    return word

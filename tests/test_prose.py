"""The check of prose (`.ci/prose.py`) finds each kind of fault on its line, and reads no code."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / ".ci" / "prose.py"
spec = importlib.util.spec_from_file_location("prose", PATH)
assert spec is not None
assert spec.loader is not None
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)

LONG = "Each of " + "the many " * 20 + "words counts."  # 44 words
LISTED = "- one\n" + "- two more items of a list without a full stop\n" * 10


def own(text: str, kind: str = ".md") -> list[tuple[int, str]]:
    """The faults that need no other package, by line."""
    text = check.prose({".md": str, ".py": check.docstrings, "cells": check.cells}[kind](text))
    return sorted([*check.words(text), *check.sentences(text)])


@pytest.mark.parametrize(
    ("sentence", "word"),
    [
        ("It is simply the mean.", "simply"),
        ("This is Just\na sum.", "Just"),
        ("EM makes four climbs.", "climbs"),
        ("The states are told apart.", "told"),
        ("It stands in the place of the mean.", "in the place of"),
        ("We run it in order to see.", "in order to"),
        ("It utilizes the gate.", "utilizes"),
        ("That is what there is.", "what there is"),
        ("It is fast. Of data in files, a sample is read.", "Of data in files,"),
        ("It takes paths as independent.", "takes paths as independent"),
        ("The folder is there already.", "is there already"),
        ("The draw comes from the\nthe prior.", "the\nthe"),
    ],
)
def test_a_word_to_avoid_is_named_with_its_line(sentence, word):
    ((line, message),) = own(f"# A page\n\nA first line.\n{sentence}\n")
    assert line == 4
    assert message.startswith(f'"{word}": ')


@pytest.mark.parametrize("text", ["An adjustment.", "A step-by-step, re-told-in-part tale.", "The theory of events."])
def test_parts_of_words_are_left_alone(text):
    assert own(text) == []


def test_a_long_sentence_is_named_with_the_line_where_it_begins():
    page = f"# A page\n\nA short one, e.g. this.\n{LONG.replace('many the', 'many' + chr(10) + 'the', 3)} Short.\n"
    assert own(page) == [(4, "a sentence of 44 words; at most 40: Each of the many the ...")]
    assert own(LONG.replace("the many the many the", "the. Many")) == []
    assert own(LISTED) == []


@pytest.mark.parametrize(
    "code",
    [
        "```python\njust = very(told)\n\nx = 1\n```",
        "Call `just(very)`.",
        "| just | very |\n|---|---|\n| told | told |",
        "$$\nvery \\text{told}\n$$",
        "The sum of $very$.",
        "    just(very)\n    told\n",
        "See [this](just-very.md) and https://just.very/told.",
        "<!-- just a remark -->",
    ],
)
def test_code_tables_formulas_and_addresses_are_left_alone(code):
    ((line, _),) = own(f"A page.\n\n{code}\n\nIt is very late.\n")
    assert line == 4 + code.rstrip("\n").count("\n") + 1 + code.endswith("\n")


def test_of_python_only_docstrings_are_read():
    source = '''"""A module."""
just = "very"  # told
def f(very):
    """It is just so.

        >>> told = very
        just

    Told.
    """
    class Inner:
        "Very short."
'''
    assert [(line, message.partition(":")[0]) for line, message in own(source, ".py")] == [
        (4, '"just"'),
        (9, '"Told"'),
        (12, '"Very"'),
    ]


def test_of_notebooks_the_markdown_cells_are_read():
    source = "# ---\n# just: very\n# ---\n# %% [markdown]\n# It is just so.\n#\n# %%\n# just code\nvery = told\n"
    assert [line for line, _ in own(source, "cells")] == [5]


def test_proselint_is_asked_and_main_counts(tmp_path, capsys):
    pytest.importorskip("proselint")
    (tmp_path / "page.md").write_text("# A page\n\nThere are a dime a dozen\nfacts.\n\nIt was just so.\n")
    (tmp_path / "_build").mkdir()
    (tmp_path / "_build" / "page.md").write_text("Just so.\n")
    (tmp_path / "book.py").write_text(f"# %%\n# just\n\n# %% [markdown]\n# {LONG}\n")
    (tmp_path / "empty.py").write_text("")
    assert check.main([tmp_path, tmp_path / "page.md"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        f"{tmp_path}/book.py:5",
        f"{tmp_path}/page.md:3",
        f"{tmp_path}/page.md:6",
    ]
    assert "(cliches" in lines[1]
    with pytest.raises(FileNotFoundError):
        check.main([tmp_path / "missing.md"])

"""What users meet in an editor: docstrings that name every parameter, short first sentences, names for completion.

A parameter is documented in the section Arguments of its function, or in code in its text, e.g. `by="step"`. Methods
that a class overrides may leave it to the class above. The arguments that many methods of a class share stand in the
section "Arguments of methods" of its docstring, fields of results under Attributes. Every public name has a section
See Also of one or two lines, which names one to three relatives in backticks, and pages of docs.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import samplehold as sh
import torch
from samplehold.inference.numerics.docstrings import share_arguments
from samplehold.switching.data.series import Given

ROOMS = [getattr(sh, name) for name in sh.__all__ if inspect.ismodule(getattr(sh, name))]
PUBLIC = {name: getattr(room, name) for room in (sh, *ROOMS) for name in dir(room) if not name.startswith("_")}
PUBLIC = {name: member for name, member in PUBLIC.items() if not inspect.ismodule(member)}
SECTION = re.compile(r"^(Arguments|More|Attributes|Arguments of methods):$")
ENTRY = re.compile(r"([\w*]+(?:, [\w*]+)*):(?: |$)")
LONGEST = 30  # words of a sentence
RELATIVES = re.compile(r"^See Also:\n((?: {4}.+\n)+)\n", re.MULTILINE)
NAME = re.compile(r"`([A-Za-z_][\w.]*)`")
PAGE = re.compile(r"\bdocs/[\w/]+\.md\b")
ROOT = Path(sh.__file__).parent
NO_PARAMETERS = {"given", "named", "options", "keywords", "others"}  # keywords of any name, or of a TypedDict


def is_ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "samplehold"


def entries(text: str | None, own: bool = False) -> Iterator[str]:
    """The names under Arguments, More and Attributes; `own`: without Attributes."""
    inside, margin = False, -1
    for line in inspect.cleandoc(text or "").split("\n"):
        width = len(line) - len(line.lstrip())
        if SECTION.match(line):
            inside, margin = not own or line in ("Arguments:", "More:"), -1
        elif line and not width:
            inside = False
        elif inside and line:
            margin = width if margin < 0 else margin
            found = ENTRY.match(line.strip()) if width == margin else None
            yield from found.group(1).replace("*", "").split(", ") if found else ()


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a function or a class, without those of the object and of any name."""
    try:
        known = inspect.signature(function).parameters
    except ValueError:
        return {}
    anything = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    return {
        name: one
        for name, one in known.items()
        if one.kind not in anything and name not in ("self", "cls") and not name.startswith("_")
    }


def functions_of(kind: type) -> Iterator[tuple[str, Any, list[str]]]:
    """The public methods of a class that are ours: name, function, and the docstrings that speak of it."""
    above = [base for base in kind.__mro__ if is_ours(base)]
    for base in above:
        for name, member in vars(base).items():
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if inspect.isfunction(function) and not name.startswith("_"):
                spoken = [getattr(vars(other).get(name), "__doc__", None) for other in above]
                yield f"{base.__name__}.{name}", function, [*spoken, *(other.__doc__ for other in above)]


def undocumented(what: str, function: Any, spoken: list[str]) -> Iterator[str]:
    named = {name for text in spoken for name in entries(text)}
    prose = "\n".join(text for text in spoken if text)
    for name in parameters(function):
        if name not in named and not re.search(rf"`{name}\b", prose):
            yield f"{what}: {name}"


def invented(what: str, function: Any, text: str | None) -> Iterator[str]:
    said = inspect.signature(function).parameters
    if inspect.isclass(function) and any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in said.values()):
        return  # a class that makes one of several
    known = set(said) | NO_PARAMETERS
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in said.values()):
        known |= set(Given.__annotations__)
    yield from (f"{what}: {name}" for name in entries(text, own=True) if name not in known)


def long_winded(what: str, text: str | None) -> Iterator[str]:
    """Sentences of more than 30 words in the first paragraph, and a first paragraph without an end."""
    first = inspect.cleandoc(text or "").split("\n\n")[0]
    if first and not first.rstrip().endswith((".", ".)", ":", "$$")):
        yield f"{what}: its first paragraph has no end"
    words = re.sub(r"`[^`]*`|\$[^$]*\$", "X", first.replace("\n", " "))
    for sentence in re.split(r"(?<=[.?!])\s+(?=[A-Z(])", words):
        if len(sentence.split()) > LONGEST:
            yield f"{what}: {len(sentence.split())} words: {sentence[:60]}"


def faults(name: str, member: Any) -> Iterator[str]:
    """What is wrong with the docstrings of a public name and its methods."""
    yield from long_winded(name, member.__doc__)
    if not inspect.isclass(member):
        yield from (*undocumented(name, member, [member.__doc__]), *invented(name, member, member.__doc__))
        return
    above = [base for base in member.__mro__ if is_ours(base)]
    texts = [base.__doc__ for base in above] + [member.__init__.__doc__]
    yield from undocumented(name, member, texts)
    yield from invented(name, member, member.__doc__)
    for method, function, spoken in functions_of(member):
        yield from (*undocumented(method, function, spoken), *long_winded(method, function.__doc__))
        yield from invented(method, function, function.__doc__)


def leads(name: str) -> bool:
    """Whether a name like `Normal`, `SwitchingSSM.fit` or `chains.Block` is public."""
    head, _, member = name.partition(".")
    home = PUBLIC.get(head, getattr(sh, head, None))
    return home is not None and (not member or hasattr(home, member))


def strangers(name: str, text: str | None) -> Iterator[str]:
    """What is wrong with the section See Also of a public name."""
    found = RELATIVES.findall(inspect.cleandoc(text or "") + "\n\n")
    if len(found) != 1:
        yield f"{name}: {len(found)} sections See Also"
        return
    if not 1 <= len(NAME.findall(found[0])) <= 3 or found[0].count("\n") > 2:
        yield f"{name}: expected one to three names on one or two lines"
    yield from (f"{name}: {other}" for other in NAME.findall(found[0]) if other == name or not leads(other))
    yield from (f"{name}: {page}" for page in PAGE.findall(found[0]) if not (ROOT / page).is_file())


RESULTS = {
    "inference.chains.contract": ("Filtered", "Smoothed", "Viterbi", "Sampled"),
    "switching.fitting.posterior": ("VariationalPosterior", "DrawnPosterior"),
    "switching.intervals": ("Interval",),
    "switching.judging.states_used": ("StatesUsed",),
    "switching.judging.selection": ("Selection",),
    "switching.linear.forecast": ("LinearForecast",),
    "switching.model": ("StreamState", "StreamOutput"),
    "switching.program": ("Simulated",),
    "switching.views.summary": ("Summary",),
}


@pytest.mark.parametrize("name", ["SwitchingSSM", "Fit", "GRU", "Copy", "Normal", "compare", "select"])
def test_docstrings_name_every_parameter_and_begin_with_short_sentences(name):
    assert list(faults(name, PUBLIC[name])) == []


@pytest.mark.slow
def test_docstrings_of_all_public_names_and_of_what_they_return():
    modules = {file: importlib.import_module(f"samplehold.{file}") for file in RESULTS}
    results = {name: getattr(modules[file], name) for file, names in RESULTS.items() for name in names}
    assert len(PUBLIC) > 150
    assert sorted({fault for name, member in (PUBLIC | results).items() for fault in faults(name, member)}) == []


def test_every_public_name_has_relatives():
    assert sorted(fault for name, member in PUBLIC.items() for fault in strangers(name, member.__doc__)) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "GRU: 0 sections See Also"),
        ("See Also: `LSTM`.", "GRU: 0 sections See Also"),
        ("See Also:\n    A page.", "GRU: expected one to three names on one or two lines"),
        ("See Also:\n    `LSTM`,\n    which\n    forgets.", "GRU: expected one to three names on one or two lines"),
        ("See Also:\n    `GRU`.", "GRU: GRU"),
        ("See Also:\n    `LSTM.forgets`.", "GRU: LSTM.forgets"),
        ("See Also:\n    `chains.GRU`.", "GRU: chains.GRU"),
        ("See Also:\n    `LSTM`; docs/none.md.", "GRU: docs/none.md"),
    ],
)
def test_wrong_relatives_are_found(text, fault):
    assert list(strangers("GRU", f"A layer.\n\n{text}\n\nExample:\n    >>> 1\n    1\n")) == [fault]


def test_a_class_that_makes_one_of_several_shows_its_arguments():
    shown = inspect.signature(sh.AutoRegressive).parameters
    assert list(shown) == ["order", "n_features", "inputs", "lags", "switching", "prior", "covariance"]
    assert [shown[name].default for name in ("order", "n_features", "lags")] == [1, 1, "all"]


def test_what_a_newcomer_sets_comes_first_in_fit():
    """In every model, in the signature and in the docstring."""
    first = ["x", "method", "restarts", "prior", "seed", "progress"]
    for model in (sh.SwitchingSSM, sh.Segments, sh.LinearSSM, sh.SwitchingLinearSSM, sh.FactorialSSM, sh.LayeredSSM):
        assert list(inspect.signature(model.fit).parameters)[1:7] == first
    named = list(inspect.signature(sh.SwitchingSSM.fit).parameters)[1:-1]  # without self and further data
    assert list(entries(sh.SwitchingSSM.fit.__doc__)) == named


def test_faults_of_docstrings_are_found():
    def wrong(x: int, y: int) -> None:
        """Take a number"""

    def more(x: int) -> None:
        """Take a number.

        Arguments:
            x: a number.
            z: another.
        """

    assert list(faults("wrong", wrong)) == ["wrong: its first paragraph has no end", "wrong: x", "wrong: y"]
    assert list(faults("more", more)) == ["more: z"]
    assert list(long_winded("", "One " + "two " * 30 + "end.")) != []


def test_networks_offer_their_own_methods_and_few_of_torch():
    """IPython completes by `dir` of the object."""
    for network, own in (
        (sh.GRU(2, 3), {"step", "weight_hh_l0", "hidden_size"}),
        (sh.MinGRU(2, 3), {"step", "initial_state", "weight_l0"}),
        (sh.stacks.SuperpositionStackRNN(2, 3, 4), {"step", "mixture", "run"}),
        (sh.automata.Acceptor(sh.GRU(2, 4), torch.nn.Linear(4, 1), "01"), {"accepts", "states", "layer"}),
    ):
        offered = {name for name in dir(network) if not name.startswith("_")}
        assert own | {"forward", "parameters", "state_dict", "to"} <= offered
        assert not {"register_full_backward_pre_hook", "T_destination", "xpu", "permute_hidden"} & offered
        assert len(offered) < 60
        assert all(hasattr(network, name) for name in offered)


def test_models_offer_the_parameters_that_have_values():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Poisson())
    assert "rate" not in dir(model)
    model = model.with_values(redraw_prob=0.1, state_probs=[0.5, 0.5], rate=[[1.0], [2.0]])
    assert {"rate", "state_probs", "fit", "smooth"} <= set(dir(model))


def test_methods_show_the_arguments_that_their_class_describes_once():
    """Those of the method that it overrides come first, its own stay, and those of others are left out."""
    assert list(entries(sh.SwitchingSSM.sample_posterior.__doc__)) == ["x", "n", "seed"]
    assert "they are drawn" in sh.LinearSSM.forward.__doc__  # as in Model.forward
    assert sh.SwitchingSSM.forecast.__doc__.count("seed:") == 1
    assert "seed: of these draws" in sh.SwitchingSSM.forecast.__doc__
    assert "horizon" not in list(entries(sh.SwitchingSSM.smooth.__doc__))
    assert list(entries(sh.sklearn.SwitchingEstimator.transform.__doc__)) == ["X", "groups", "lengths"]


def test_an_entry_of_several_arguments_is_shown_where_all_of_them_are():
    class Shape:
        """A shape.

        Arguments of methods:
            low, high: the ends.
            step: the distance.
        """

        def both(self, low, high, step):
            """Both ends.

            Returns:
                A number.
            """

        def one(self, low):
            """One end."""

    share_arguments(Shape)
    assert Shape.both.__doc__ == (
        "Both ends.\n\nArguments:\n    low, high: the ends.\n    step: the distance.\n\nReturns:\n    A number.\n"
    )
    assert Shape.one.__doc__ == "One end."

"""Observations in every form that numbers come in: the same answers as from float64, or refused by name."""

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
import xarray as xr
from samplehold.switching.stacks import automaton
from torch.utils.data import DataLoader, TensorDataset

NAN = float("nan")
X = [0.5, 1.0, NAN, 4.0, 4.5, 4.0]
WHOLE = [0.0, 1.0, 0.0, 4.0, 5.0, 4.0]
MASK = [False, False, True, False, False, False]
FILLED = [0.5, 1.0, 1e6, 4.0, 4.5, 4.0]


def model():
    model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal())
    return model.with_values(redraw_prob=0.2, state_probs=[0.5, 0.5], loc=[[0.0], [4.0]], scale=[[1.0], [1.0]])


def negative(values):
    """The numbers as a view with the negative bit set."""
    return torch.complex(torch.zeros(len(values), dtype=torch.float64), -torch.tensor(values).double()).conj().imag


def inferred(values):
    with torch.inference_mode():
        return torch.tensor(values, dtype=torch.float64)


def read_only(values):
    array = np.array(values)
    array.flags.writeable = False
    return array


WITH_GAP = {
    "masked array": np.ma.array(FILLED, mask=MASK),
    "masked constant in a list": [
        np.ma.masked if hidden else value for value, hidden in zip(FILLED, MASK, strict=True)
    ],
    "masked array of one feature": np.ma.array(FILLED, mask=MASK)[:, None],
    "list of a masked array": [np.ma.array(FILLED, mask=MASK)],
    "masked rows in a list": [*np.ma.array(FILLED, mask=MASK)],
    "objects": np.array(X, dtype=object),
    "NA among objects": np.array([pd.NA if value != value else value for value in X], dtype=object),
    "NA in a list": [pd.NA if value != value else value for value in X],
    "None in a list": [None if value != value else value for value in X],
    "None among objects": np.array([None if value != value else value for value in X], dtype=object),
    "None in rows": [[None if value != value else value] for value in X],
    "Float64": pd.Series(X, dtype="Float64"),
    "frame of Float64": pd.DataFrame({"v": pd.array(X, dtype="Float64")}),
    "None in a pandas Series": pd.Series([None if value != value else value for value in X], dtype=object),
    "Decimal": [Decimal(str(value)) for value in X],
    "Decimal in a Series": pd.Series([Decimal(str(value)) for value in X]),
    "long double": np.array(X, dtype=np.longdouble),
    "float16": np.array(X, dtype=np.float16),
    "half": torch.tensor(X, dtype=torch.float16),
    "bfloat16": torch.tensor(X, dtype=torch.bfloat16),
    "big endian": np.array(X, dtype=">f8"),
    "little endian": np.array(X, dtype="<f8"),
    "float32 of the other order": np.array(X, dtype=">f4").astype("<f8"),
    "backwards": np.array(X[::-1])[::-1],
    "every other": np.repeat(np.array(X), 2)[::2],
    "read-only": read_only(X),
    "negative bit": negative(X),
    "inference mode": inferred(X),
    "requires grad": torch.tensor(X, dtype=torch.float64, requires_grad=True),
    "numbers of numpy": [np.float64(value) for value in X],
    "tensors of no axis": [torch.tensor(value, dtype=torch.float64) for value in X],
    "xarray": xr.DataArray(X),
    "tuple": tuple(X),
}
WITHOUT = {
    "masked integers": np.ma.array([0, 1, 0, 4, 5, 4], mask=False),
    "Int64": pd.Series([0, 1, 0, 4, 5, 4], dtype="Int64"),
    "int8": np.array([0, 1, 0, 4, 5, 4], dtype=np.int8),
    "uint64": np.array([0, 1, 0, 4, 5, 4], dtype=np.uint64),
    "uint16 tensor": torch.tensor([0, 1, 0, 4, 5, 4], dtype=torch.uint16),
    "big endian integers": np.array([0, 1, 0, 4, 5, 4], dtype=">i4"),
    "fractions": [Fraction(value) for value in (0, 1, 0, 4, 5, 4)],
    "range of a pandas Index": pd.Index([0, 1, 0, 4, 5, 4]),
}


@pytest.mark.parametrize("form", [*WITH_GAP, *WITHOUT])
def test_every_form_of_numbers_gives_the_answers_of_float64(form):
    expected = model().smooth(torch.tensor(X if form in WITH_GAP else WHOLE, dtype=torch.float64))
    found = model().smooth((WITH_GAP | WITHOUT)[form], ragged=False)
    torch.testing.assert_close(found.state.reshape(6, 2), expected.state, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.log_normalizer.sum(), expected.log_normalizer, rtol=1e-12, atol=0)


def test_a_fit_takes_every_form_too():
    expected = model().fit(X, restarts=1, max_steps=3, progress=False)
    for form in ("masked array", "Float64", "Decimal", "negative bit", "inference mode", "requires grad"):
        found = model().fit(WITH_GAP[form], restarts=1, max_steps=3, progress=False)
        assert float(found.loglik) == pytest.approx(float(expected.loglik), rel=1e-9)


def test_masked_integers_are_missing():
    masked = np.ma.array([0, 1, 10**6, 4, 5, 4], mask=MASK)
    expected = model().log_evidence([0.0, 1.0, NAN, 4.0, 5.0, 4.0])
    torch.testing.assert_close(model().log_evidence(masked), expected)
    torch.testing.assert_close(model().log_evidence(pd.Series([0, 1, None, 4, 5, 4], dtype="Int64")), expected)
    torch.testing.assert_close(model().log_evidence([masked, masked]), expected.expand(2))


def test_truth_values_are_observations_of_bernoulli():
    own = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Bernoulli())
    own = own.with_values(redraw_prob=0.2, state_probs=[0.5, 0.5], probs=[[0.1], [0.9]])
    expected = own.log_evidence([0.0, 1.0, NAN])
    torch.testing.assert_close(own.log_evidence(pd.Series([False, True, None], dtype="boolean")), expected)


REFUSED = {
    "dates": np.array(["2020-01-01", "2020-01-02"], dtype="M8[D]"),
    "times between": np.array([1, 2], dtype="m8[s]"),
    "dates of pandas": pd.Series(pd.to_datetime(["2020-01-01", "2020-01-02"])),
    "times between, of pandas": pd.Series(pd.to_timedelta([1, 2], unit="s")),
    "an index of dates": pd.to_datetime(["2020-01-01", "2020-01-02"]),
    "complex": np.array([1 + 1j, 2.0]),
    "complex numbers in a list": [1j, 2.0],
    "complex Series": pd.Series([1 + 1j, 2.0]),
    "complex tensor": torch.tensor([1j, 2.0]),
    "conjugate": torch.tensor([1j, 2.0]).conj(),
    "text": "1.0",
    "text in a list": ["1.0", "2.0"],
    "text in a Series": pd.Series(["1.0", "2.0"]),
    "bytes": b"12",
    "bytes in an array": np.array([b"1", b"2"]),
    "objects": [object(), object()],
    "one object": object(),
    "None": None,
    "text beside None": [None, "1.0"],
    "None for a row": [[1.0], None],
    "set": {1.0, 2.0},
    "sparse": torch.tensor([1.0, 2.0]).to_sparse(),
    "without values": torch.ones(2, device="meta"),
    "generator": (value for value in X),
    "records": np.array([(1.0, 2)], dtype=[("a", "f8"), ("b", "i8")]),
}


@pytest.mark.parametrize("form", REFUSED)
def test_what_is_no_number_is_refused_by_name(form):
    with pytest.raises(TypeError, match=r"^x(\[0\])?: got "):
        model().log_evidence(REFUSED[form])
    with pytest.raises(TypeError, match=r"^loc: got "):
        model().with_values(redraw_prob=0.2, state_probs=[0.5, 0.5], loc=REFUSED[form], scale=[[1.0], [1.0]])


def test_a_mask_where_nothing_may_be_missing_is_refused():
    masked = np.ma.array([6, 6], mask=[False, True])
    two = [[[value] for value in WHOLE]] * 2
    with pytest.raises(TypeError, match=r"^lengths: "):
        model().log_evidence(torch.tensor(two), lengths=masked)
    with pytest.raises(ValueError, match=r"^dt: "):
        model().log_evidence(WHOLE, dt=np.ma.array([1.0] * 6, mask=MASK))
    own = sh.SwitchingSSM(sh.Copy(n_states=2, inputs=1), sh.Normal())
    own = own.with_values(
        redraw_intercept=0.0, redraw_weights=[1.0], state_probs=[0.5, 0.5], loc=[[0.0], [4.0]], scale=[[1.0], [1.0]]
    )
    with pytest.raises(ValueError, match=r"^inputs: "):
        own.log_evidence(WHOLE, inputs=np.ma.array([[1.0]] * 6, mask=[[hidden] for hidden in MASK]))


@pytest.mark.parametrize("lengths", [np.array([6, 4], dtype=">i2"), pd.Series([6, 4], index=[7, 8]), [np.int8(6), 4]])
def test_lengths_come_in_every_form_of_integers(lengths):
    two = torch.tensor([WHOLE, WHOLE]).unsqueeze(-1)
    torch.testing.assert_close(model().log_evidence(two, lengths=lengths), model().log_evidence(two, lengths=[6, 4]))
    tables = torch.zeros(2, 6, 2)
    expected = sh.chains.CopyChain(None, tables, tables, [6, 4]).log_normalizer()
    torch.testing.assert_close(sh.chains.CopyChain(None, tables, tables, lengths).log_normalizer(), expected)


def test_a_list_of_no_sequences_is_refused():
    for nothing in ([], {}, ()):
        with pytest.raises(ValueError, match=r"^x: "):
            model().log_evidence(nothing)


def negative(table):
    """The same numbers behind a negative bit."""
    return torch.complex(torch.zeros_like(table), -table).conj().imag


def of_inference(table):
    with torch.inference_mode():
        return table.clone()


@pytest.mark.parametrize("form", [negative, of_inference])
def test_tables_of_every_kind_of_tensor_give_the_answers_of_plain_ones(form):
    table = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    initial = table[:, :1]

    def answers(form):
        mixture = sh.stacks.StackMixture(form(table.log_softmax(-1)), form(table), form(initial), on_empty="forbid")
        yield from (
            mixture.log_normalizer(),
            mixture.viterbi().depth,
            mixture.condition(form(table.new_zeros(2, 4, 6))).top(),
        )
        steps = [
            form(table[0, 0].expand(1, 3, 1, 3)),
            form(table[0, 1].expand(1, 3, 1, 3)),
            form(table[0, 2].reshape(1, 3, 1)),
        ]
        yield automaton.advance(automaton.start(form(table[0, 3].reshape(1, 3))), *steps).reading
        yield sh.fit_probe(form(table[0]), form(table[1].softmax(-1)), form(table[0])).state

    for found, expected in zip(answers(form), answers(lambda table: table), strict=True):
        torch.testing.assert_close(found, expected)


DAYS = pd.DatetimeIndex(["2026-01-01", "2026-01-03", "2026-01-03 12:00"])
TIMES = {
    "index": DAYS,
    "index with a time zone": DAYS.tz_localize("Europe/Vienna"),
    "column": pd.Series(DAYS),
    "column of objects": pd.Series([*DAYS], dtype=object),
    "array": DAYS.to_numpy(),
    "list": [*DAYS],
    "datetimes": DAYS.to_pydatetime().tolist(),
    "durations": DAYS - DAYS[0],
    "text": ["2026-01-01", "2026-01-03", "2026-01-03T12:00"],
    "days": [0.0, 2.0, 2.5],
}


@pytest.mark.parametrize("form", TIMES)
def test_times_may_be_dates(form):
    expected = torch.tensor([0.0, 2.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(model().read(X[:3], time=TIMES[form]).dt, expected)
    two = model().read([X[:3], X[:2]], time=[TIMES[form], TIMES[form][:2]]).dt
    torch.testing.assert_close(two, torch.stack([expected, torch.tensor([0.0, 2.0, 0.0], dtype=torch.float64)]))
    with pytest.raises(ValueError, match="time: goes back at step 1"):
        model().read(X[:3], time=TIMES[form][::-1])


def test_periods_are_counted_in_periods():
    quarters = pd.PeriodIndex(["2019Q4", "2020Q1", "2021Q1"], freq="Q")
    assert model().read(X[:3], time=quarters).dt.tolist() == [0, 1, 4]
    with pytest.raises(ValueError, match="time: got nan at step 1"):
        model().read(X[:3], time=pd.DatetimeIndex([DAYS[0], pd.NaT, DAYS[2]]))


ROWS = pd.DataFrame({"who": list("aab"), "v": [1.0, 2.0, 3.0]})


@pytest.mark.parametrize(
    ("x", "said"),
    [
        ("data.csv", "x: got text 'data.csv', expected numbers; read the file first, as by pandas.read_csv"),
        (Path("data.csv"), "x: got the path data.csv, expected numbers; read the file first"),
        (DataLoader(TensorDataset(torch.zeros(4, 3, 1))), "x: got DataLoader.*its items are batches; give its dataset"),
        (ROWS.groupby("who"), "x: got DataFrameGroupBy.*give the frame itself: sh.read_panel"),
        (ROWS.groupby("who")["v"], "x: got SeriesGroupBy.*give the frame itself"),
        (iter([X, X]), "x: got list_iterator.*give a list of sequences"),
    ],
)
def test_what_only_leads_to_data_is_refused_with_a_cure(x, said):
    with pytest.raises(TypeError, match=said):
        model().fit(x, progress=False)

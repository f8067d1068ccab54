"""What cannot be read is told before any work: the file, the row and the cure."""

import datetime
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import samplehold as sh
import torch
from samplehold.switching.data import arrow as arrow_module
from samplehold.switching.data import table_files

GOOD = {"who": ["a", "a", "b", "b"], "t": [0, 1, 0, 1], "v": [1.0, 2.0, 3.0, 4.0]}


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(arrow_module, "ROWS", 3)


def files(tmp_path, *tables: dict):
    for i, table in enumerate(tables):
        pq.write_table(pa.table(table), tmp_path / f"part-{i}.parquet", row_group_size=2)
    return tmp_path


@pytest.mark.parametrize(
    ("second", "kind", "message"),
    [
        (
            {"who": ["c"], "t": [0]},
            ValueError,
            r"source: .*part-1.parquet has no column 'v', which .*part-0.parquet has",
        ),
        ({"who": ["c"], "t": [0], "v": ["x"]}, ValueError, r"source: .*part-1.* has column 'v' of string, .*of double"),
        ({"who": [3], "t": [0], "v": [1.0]}, ValueError, r"source: .*part-1.* column 'who' of int64, .* of string"),
        ({"who": ["c"], "t": [datetime.date(2020, 1, 1)], "v": [1.0]}, ValueError, r"source: .*'t' of date32.*int64"),
        ({"who": ["c"], "t": [0], "v": [[1.0]]}, ValueError, r"source: .*part-1.* has column 'v' of list<.*double"),
        ({"who": ["a"], "t": [7], "v": [1.0]}, ValueError, r"sequence: got 'a' again in row 1 of .*part-1.*read_panel"),
        ({"who": ["b"], "t": [1], "v": [1.0]}, ValueError, r"time: t comes twice in row 1 of .*part-1.*, where 1 foll"),
        ({"who": ["b"], "t": [0], "v": [1.0]}, ValueError, r"time: t goes back in row 1 of .*part-1.*sort the rows"),
        ({"who": ["c", None], "t": [0, 1], "v": [1.0, 2.0]}, ValueError, r"sequence: got no who in row 2 of .*part-1"),
        ({"who": ["c", "c"], "t": [0, None], "v": [1.0, 2.0]}, ValueError, r"time: got no t in row 2 of .*part-1"),
        ({"who": ["c"], "t": [0], "v": [np.inf]}, ValueError, r"x: got inf in row 1 of .*part-1.parquet, column v;"),
        ({"who": ["c"], "t": [0], "v": [1.0], "u": [2.0]}, ValueError, r"source: .*part-1.* has a column 'u', which"),
    ],
)
def test_a_second_file_that_does_not_fit_is_named(second, kind, message, tmp_path):
    with pytest.raises(kind, match="^" + message):
        sh.open_sequences(files(tmp_path, GOOD, second), "who", "t")


def test_files_may_differ_in_columns_that_are_not_read_and_in_kinds_of_numbers(tmp_path):
    second = {
        "v": pa.array([5, None], pa.int32()),
        "t": pa.array([0, 1], pa.int64()),
        "who": ["c", "c"],
        "u": ["x", "y"],
    }
    series = sh.open_sequences(files(tmp_path, GOOD, second), "who", "t", "v")
    assert series.x.rows[-2:, 0].nan_to_num(nan=-1.0).tolist() == [5.0, -1.0]


@pytest.mark.parametrize(
    ("table", "arguments", "kind", "message"),
    [
        (GOOD, {"columns": "w"}, ValueError, r"columns: got 'w', expected columns among who, t, v of .*part-0.parquet"),
        (GOOD, {"sequence": "w"}, ValueError, "sequence: got 'w', expected columns among"),
        (GOOD, {"time": ["t", "v"]}, ValueError, "time: got .*, expected the name of one column"),
        (GOOD, {"columns": 3.5}, ValueError, "columns: got 3.5, expected columns"),
        (GOOD, {"inputs": "w"}, ValueError, "inputs: got 'w', expected columns"),
        (
            GOOD,
            {"columns": "who"},
            TypeError,
            r"columns: got column 'who' of string in .*, which holds values that are",
        ),
        (GOOD, {}, TypeError, r"source: got column 'who' of string in .*part-0.parquet, which holds .*`sequence`"),
        (
            {**GOOD, "k": pa.array(list("xxyy")).dictionary_encode()},
            {"columns": "k"},
            TypeError,
            r"columns: got column 'k' of dictionary<.*give its codes, or select",
        ),
        (
            {**GOOD, "day": [datetime.date(2020, 1, 1)] * 4},
            {"columns": "day"},
            TypeError,
            r"columns: got column 'day' of date32",
        ),
        (
            {**GOOD, "t": pa.array([None] * 4)},
            {"sequence": "who", "time": "t"},
            ValueError,
            "time: got no t in row 1 of",
        ),
        ({**GOOD, "t": [0, 2, 1, 3]}, {"time": "t", "columns": "v"}, ValueError, "time: t goes back in row 3 of"),
        ({**GOOD, "t": list("uvvw")}, {"time": "t", "columns": "v"}, ValueError, "time: t comes twice in row 3 of"),
        ({**GOOD, "t": list("uvwu")}, {"time": "t", "columns": "v"}, ValueError, "time: t comes twice in row 4 of"),
        (
            {**GOOD, "t": ["1/2/2020", "1/3/2020", "1/1/2020", "1/4/2020"]},
            {"time": "t", "columns": "v"},
            ValueError,
            "time: t goes back in row 3 of .*, where 1/1/2020 follows 1/3/2020",
        ),
        ({**GOOD, "who": list("abab")}, {"sequence": "who"}, ValueError, "sequence: got 'a' again in row 3 of"),
        ({**GOOD, "who": [0.5, np.nan, 1.0, 1.0]}, {"sequence": "who"}, ValueError, "sequence: got no who in row 2 of"),
        (
            {**GOOD, "w": [1.0, -1.0, 1.0, 1.0]},
            {"weights": "w"},
            ValueError,
            "weights: got -1 in row 2 of .*finite weig",
        ),
        (
            {**GOOD, "s": [1.0, 0.5, 1.0, 1.0]},
            {"states": "s"},
            ValueError,
            "states: got 0.5 in row 2 of .*whole numbers",
        ),
        ({**GOOD, "s": list("1234")}, {"states": "s"}, TypeError, "states: got text '1', expected numbers or labels"),
        ({**GOOD, "n": [1.0, 1.0, -3.0, 1.0]}, {"noise": "n"}, ValueError, "noise: got -3 in row 3 of .*variances"),
        ({"v": [[1.0], []]}, {}, ValueError, "source: row 2 of .* has an empty list, a sequence without steps"),
        (
            {"v": [[1.0], [1.0, 2.0]], "u": [[1.0], [2.0]]},
            {},
            ValueError,
            "source: row 2 of .* has 1 cells of 'u', but 2",
        ),
        ({"v": [[1.0]], "u": [1.0]}, {}, ValueError, "source: .* has column 'u' of double, but lists in other columns"),
        ({"who": [None], "v": [[1.0]]}, {"sequence": "who"}, ValueError, "sequence: got no who in row 1 of"),
        ({"who": [["x"]], "v": [1.0]}, {"sequence": "who"}, TypeError, "sequence: got column 'who' of list<"),
        ({"v": pa.array([], pa.float64())}, {}, ValueError, "source: has no rows"),
    ],
)
def test_a_file_that_does_not_hold_sequences_is_refused(table, arguments, kind, message, tmp_path):
    arguments = {"sequence": "who", **arguments} if {"weights", "states", "noise"} & arguments.keys() else arguments
    named = arguments if "columns" in arguments or "v" not in table or len(table) < 3 else {**arguments, "columns": "v"}
    with pytest.raises(kind, match="^" + message):
        sh.open_sequences(files(tmp_path, table), **(named if arguments else {}))


def test_paths_that_hold_nothing_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"^source: there is no file or folder .*nowhere"):
        sh.open_sequences(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"^source: .* has no files to read; give a folder of Parquet"):
        sh.open_sequences(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"^source: .*notes.txt has the suffix '.txt', expected one of .parquet"):
        sh.open_sequences(tmp_path)
    with pytest.raises(ValueError, match=r"^source: expected the path|^source: got ''"):
        sh.open_sequences("")
    (tmp_path / "book.xlsx").write_text("x")
    with pytest.raises(ValueError, match=r"^source: .*book.xlsx is a workbook"):
        sh.open_sequences(tmp_path / "book.xlsx")


@pytest.mark.parametrize("name", ["x.parquet", "x.feather", "x.arrow", "x.csv.gz"])
def test_files_that_cannot_be_read_are_named(name, tmp_path):
    path = tmp_path / name
    path.touch()
    with pytest.raises(ValueError, match=rf"^source: .*{name} is empty"):
        sh.open_sequences(path)
    path.write_bytes(b"PAR1 and then nothing of use")
    with pytest.raises(ValueError, match=rf"^source: .*{name} cannot be read as (Parquet|Arrow|CSV) \("):
        sh.open_sequences(path)


def test_a_damaged_part_of_a_file_is_named(tmp_path):
    path = files(tmp_path, {"v": np.random.default_rng(0).normal(size=5000)}) / "part-0.parquet"
    data = bytearray(path.read_bytes())
    data[100:1000] = bytes(900)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"^source: .*part-0.parquet cannot be read as Parquet \("):
        sh.open_sequences(path)


def test_mistakes_in_text_name_the_row(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "HEAD", 100)
    path = tmp_path / "x.csv"
    path.write_text("v,u\n1,2\n3\n")
    with pytest.raises(ValueError, match=r"^source: .*x.csv cannot be read as CSV \(.*Row #3: Expected 2 columns"):
        sh.open_sequences(path)
    path.write_text("v,u\n" + "1,2\n" * 100 + "1,two\n")  # the first rows tell the types
    with pytest.raises(ValueError, match=r"^source: .*x.csv cannot be read as CSV \(.*'two'"):
        sh.open_sequences(path)
    path.write_text("v,u\n" + "1,2\n" * 100 + "1.5,\n")
    assert sh.open_sequences(path).x.rows[-1].nan_to_num(nan=-1.0).tolist() == [1.5, -1.0]


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        (None, TypeError, "source: got NoneType, expected paths of files"),
        (3, TypeError, "source: got int, expected paths"),
        ([], ValueError, "source: has no rows"),
        ({}, ValueError, "source: has no rows"),
        ((x for x in ()), ValueError, "source: has no rows"),
        (np.zeros((0, 2)), ValueError, r"source: got shape \(0, 2\), expected \[T\]"),
        (np.zeros((2, 2, 2, 2)), ValueError, r"source: got shape \(2, 2, 2, 2\), expected"),
        (np.array(["a"]), TypeError, "source: got ndarray of <U1"),
        (np.array([1j]), TypeError, "source: got complex"),
        (np.array([1.0, np.inf]), ValueError, "x: got inf in step 1, feature 0; expected finite"),
        (np.array([[[1.0], [np.inf]]]), ValueError, "x: got inf in step 1 of sequence 0"),
        ([1.0, 2.0], ValueError, r"source\[0\]: got shape \(\), expected a sequence \[T\] or \[T, F\]"),
        ([[1.0], []], ValueError, r"source\[1\]: got shape \(0,\), expected a sequence"),
        ([[1.0], ["x"]], TypeError, r"source\[1\]: "),
        (
            [np.zeros((2, 2)), np.zeros((2, 3))],
            ValueError,
            r"source: got 3 feature\(s\) in step 0 of source\[1\], but 2",
        ),
        ([np.zeros(2), pd.DataFrame({"v": [1.0]})], TypeError, r"source: got both tables and arrays, as source\[1\]"),
        ([{"v": [1.0], "u": [1.0, 2.0]}], ValueError, r"source\[0\]: got shape \(1,\) of 'v', expected columns"),
        ([{"v": np.zeros((2, 2))}], ValueError, r"source\[0\]: got shape \(2, 2\) of 'v'"),
        ({"a": [1.0], "b": [np.nan, -np.inf]}, ValueError, r"x: got -inf in step 1 of source\['b'\]"),
        (pa.table([[1.0], [2.0]], ["v", "v"]), ValueError, "source: the table has two columns called 'v'"),
        (torch.utils.data.DataLoader([torch.ones(2)]), TypeError, "source: got a DataLoader, whose items are batches"),
        (
            torch.utils.data.TensorDataset(torch.ones(2, 3), torch.ones(2, 3)),
            TypeError,
            r"source\[0\]: got a tuple of 2",
        ),
        (pd.DataFrame({"v": [1.0]}).iloc[:0], ValueError, "source: has no rows"),
    ],
)
def test_other_sources_that_hold_no_sequences_are_refused(source, kind, message):
    with pytest.raises(kind, match="^" + message):
        sh.open_sequences(source)


def test_arrays_have_no_columns():
    for source in (np.zeros(3), [np.zeros(3)]):
        with pytest.raises(ValueError, match=r"^time: got 't', but .* has no named columns; leave it out"):
            sh.open_sequences(source, time="t")


def test_uneven_times_are_told_unless_gaps_are_given():
    table = {"who": list("aaabbb"), "t": [0, 1, 2, 0, 1, 5], "v": np.arange(6.0), "gap": np.ones(6)}
    with pytest.warns(UserWarning, match=r"^source: sequence b: its index t is not evenly spaced, as from 1 to 5"):
        sh.open_sequences(pa.table(table), "who", "t", "v")
    sh.open_sequences(pa.table(table), "who", "t", "v", dt="gap")


def test_tables_need_pyarrow(monkeypatch, tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for source in (tmp_path, str(tmp_path / "x.parquet"), pd.DataFrame({"v": [1.0]}), [{"v": [1.0]}]):
        with pytest.raises(
            ModuleNotFoundError, match=r"^pyarrow is not installed; pip install 'samplehold\[parquet\]'"
        ):
            sh.open_sequences(source)
    assert sh.open_sequences([torch.ones(2)]).n_sequences == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (pd.DataFrame({"v": [1, "x", 2.5]}, dtype=object), "the table: got values of several types in column v; make"),
        ([GOOD, {**GOOD, "v": np.array([1, "x", 2, 3], object)}], r"source\[1\]: got values of several types in"),
        ({"a": pd.DataFrame({"v": ["u", 2]}, dtype=object)}, r"source\['a'\]: got values of several types in column v"),
    ],
)
def test_columns_of_several_types_are_named(source, message):
    with pytest.raises(TypeError, match="^" + message):
        sh.open_sequences(source, columns="v")


@pytest.mark.parametrize("content", [b"\xff\xfe\xfd,v\n1,2\n", "who,v\n1,2\n".encode("utf-16")])
def test_a_file_that_is_no_text_is_named(content, tmp_path):
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(ValueError, match=r"^source: .*x\.csv cannot be read as CSV"):
        sh.open_sequences(tmp_path / "x.csv")

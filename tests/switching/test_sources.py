"""Data read in batches from files and other sources: the same series as from one table in memory."""

import datetime
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import samplehold as sh
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles.processes import printed
from samplehold.switching import progress
from samplehold.switching.data import arrow as arrow_module
from samplehold.switching.data import source_kinds, sources
from samplehold.switching.data.panel import Choice
from samplehold.switching.data.series import Series
from samplehold.switching.data.sources import share_of

TABLES = ("x", "inputs", "dt", "states", "step_weights", "noise")


def rows_in_order(series: Series, name: str) -> torch.Tensor | None:
    """The numbers of all steps, one sequence after another."""
    table = getattr(series, name)
    if table is None or hasattr(table, "rows"):
        return None if table is None else table.rows
    return table[series.inside] if series.batch_shape else table


def assert_same(ours: Series, expected: Series) -> None:
    """Every number and label is the same."""
    assert ours.on_disk
    for name in TABLES:
        mine, theirs = rows_in_order(ours, name), rows_in_order(expected, name)
        assert (mine is None) == (theirs is None), name
        if mine is not None and theirs is not None:
            torch.testing.assert_close(mine.to(theirs.dtype), theirs, rtol=0, atol=0, equal_nan=True)
    assert ours.lengths is not None
    assert ours.lengths.tolist() == (expected.last.flatten() + 1).tolist()
    for name in ("features", "sequences", "drivers", "state_names"):
        assert getattr(ours, name) == getattr(expected, name), name
    for i in range(ours.n_sequences):
        n = int(ours.lengths[i])
        mine, theirs = ours.index_of(i), expected.index_of(i)
        assert mine is not None
        assert theirs is not None
        pd.testing.assert_index_equal(mine[:n], theirs[:n], exact="equiv")


def numbers_of(lengths: list[int], seed: int = 0) -> dict[str, list]:
    """Columns of sequences of some lengths, with empty cells."""
    draw, n = np.random.default_rng(seed), sum(lengths)
    level = [None if gone else float(x) for x, gone in zip(draw.normal(size=n), draw.random(n) < 0.2, strict=True)]
    return {
        "who": [f"subject {i}" for i, length in enumerate(lengths) for _ in range(length)],
        "t": [step for length in lengths for step in range(length)],
        "level": level,
        "count": draw.integers(0, 9, n).tolist(),
        "dose": draw.normal(size=n).tolist(),
    }


def table_of(lengths: list[int], seed: int = 0) -> pa.Table:
    return pa.table(numbers_of(lengths, seed))


def written(folder: Path, table: pa.Table, cuts: list[int], row_group_size: int = 3) -> list[Path]:
    """Parquet files of the rows between cuts."""
    paths = []
    ends = [*cuts, table.num_rows]
    for i, (first, stop) in enumerate(zip([0, *cuts], ends, strict=True)):
        paths.append(folder / f"part-{i}.parquet")
        pq.write_table(table.slice(first, stop - first), paths[-1], row_group_size=row_group_size)
    return paths


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(arrow_module, "ROWS", 2)
    monkeypatch.setattr(arrow_module, "CELLS", 2)
    monkeypatch.setattr(source_kinds, "BLOCK", 4)


def test_files_in_natural_order_are_one_table(tmp_path):
    table = table_of([4, 1, 7, 3])
    written(tmp_path, table, [2, 3, 3, 4, 5, 6, 7, 8, 9, 11])  # sequences span row groups and files; one file is empty
    assert len(list(tmp_path.iterdir())) == 11
    (tmp_path / "_SUCCESS").touch()
    expected = sh.read_panel(table, "who", "t", ["level", "count"], inputs="dose")
    assert_same(sh.open_sequences(tmp_path, "who", "t", ["level", "count"], inputs="dose"), expected)
    files = sorted(str(p) for p in tmp_path.glob("*.parquet"))  # part-10 is before part-2
    shuffled = pa.concat_tables([pq.read_table(p) for p in files])
    assert not shuffled.equals(table)
    paths = sorted(tmp_path.glob("*.parquet"), key=lambda p: int(p.stem[5:]))
    assert_same(sh.open_sequences(paths, "who", "t", ["level", "count"], inputs="dose"), expected)


def as_parquet(table: pa.Table, path: Path) -> Path:
    pq.write_table(table, path / "x.parquet", row_group_size=5)
    return path / "x.parquet"


def as_feather(table: pa.Table, path: Path) -> Path:
    pyarrow.feather.write_feather(table, str(path / "x.feather"), chunksize=4)
    return path / "x.feather"


def as_stream(table: pa.Table, path: Path) -> Path:
    with pa.OSFile(str(path / "x.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return path / "x.arrow"


def as_csv(table: pa.Table, path: Path) -> Path:
    pyarrow.csv.write_csv(table, path / "x.csv")
    return path / "x.csv"


def as_gzip(table: pa.Table, path: Path) -> Path:
    table.to_pandas().to_csv(path / "x.csv.gz", index=False)
    return path / "x.csv.gz"


FORMATS = [as_parquet, as_feather, as_stream, as_csv, as_gzip]


@pytest.mark.parametrize("write", FORMATS)
def test_every_format_gives_the_numbers_of_the_table(write, tmp_path):
    table = table_of([5, 2, 6])
    expected = sh.read_panel(table, "who", "t", ["level", "count"], inputs=["dose"])
    path = write(table, tmp_path)
    assert_same(sh.open_sequences(str(path), "who", "t", ["level", "count"], inputs=["dose"]), expected)


@pytest.mark.parametrize(
    "source",
    [
        lambda table, path: table,
        lambda table, path: table.to_reader(max_chunksize=3),
        lambda table, path: table.to_pandas(),
        lambda table, path: pl.from_arrow(table),
        lambda table, path: pyarrow.dataset.dataset(table),
        lambda table, path: pyarrow.dataset.dataset(as_parquet(table, path)).filter(pyarrow.dataset.field("t") >= 0),
        lambda table, path: pyarrow.dataset.dataset([str(p) for p in written(path, table, [3, 6])]),
        lambda table, path: [table.slice(0, 4), table.slice(4)],
        lambda table, path: (table.slice(i, 1) for i in range(table.num_rows)),
        lambda table, path: [table.slice(0, 4).to_pydict(), table.slice(4).to_pydict()],
    ],
)
def test_every_kind_of_table_gives_the_numbers_of_the_table(source, tmp_path):
    table = table_of([5, 2, 6])
    expected = sh.read_panel(table, "who", "t", ["level", "count"])
    assert_same(sh.open_sequences(source(table, tmp_path), "who", "t", ["level", "count"]), expected)


def test_a_part_of_a_dataset_that_cannot_be_counted_is_named(tmp_path, monkeypatch):
    paths = [str(p) for p in written(tmp_path, table_of([5, 2]), [3])]
    dataset = pyarrow.dataset.dataset(paths)
    Path(paths[1]).write_bytes(b"PAR1 no table PAR1")
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)  # bars need the number of rows
    with pytest.raises(ValueError, match=rf"^source: {re.escape(paths[1])} cannot be read as a dataset \("):
        sh.open_sequences(dataset, "who", "t", ["level", "count"])


@pytest.mark.parametrize(
    "cells",
    [
        pa.array(["a", "a", "b", "b", "b", "c"]).dictionary_encode(),
        pa.array([1, 1, 2, 2, 2, 30], pa.int16()),
        pa.array([datetime.date(2020, 1, day) for day in (1, 1, 2, 2, 2, 3)]),
        pa.array([0.5, 0.5, 1.0, 1.0, 1.0, -2.0]),
        pa.array(["x", "x", "y", "y", "y", "z"], pa.string_view()),
    ],
)
def test_names_of_every_type(cells, tmp_path):
    table = pa.table({"who": cells, "v": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]})
    in_memory = table.to_pandas() if "view" in str(cells.type) else table  # narwhals does not know this type
    ours = sh.open_sequences(written(tmp_path, table, [1, 4]), "who")
    assert_same(ours, sh.read_panel(in_memory, "who"))
    half = [0, 0, 0, 1, 1, 1]
    both, expected = (
        frame.append_column("half", [half]) if isinstance(frame, pa.Table) else frame.assign(half=half)
        for frame in (table, in_memory)
    )
    assert_same(sh.open_sequences(both, ["who", "half"]), sh.read_panel(expected, ["who", "half"]))


TIMES = [
    pd.date_range("2020-01-01", periods=6),
    pd.date_range("2020-01-01", periods=6, freq="h", tz="Europe/Berlin"),
    pd.date_range("2020-01-31", periods=6, freq="ME").astype("datetime64[ms]"),
    pd.timedelta_range("1D", periods=6),
    np.arange(6, dtype=np.uint8),
    0.5 * np.arange(6),
    [datetime.date(2020, 1, day) for day in range(1, 7)],
    [f"{2000 + i // 4}Q{i % 4 + 1}" for i in range(6)],
    [f"2020-01-0{day}" for day in range(1, 7)],
    list("uvwxyz"),
]


@pytest.mark.parametrize("times", TIMES, ids=lambda times: str(pd.Index(times).dtype))
def test_times_of_every_type(times, tmp_path):
    frame = pd.DataFrame({"who": list("aaaaaa") + list("bbb"), "at": [*times, *times[:3]], "v": np.arange(9.0)})
    table = pa.Table.from_pandas(frame)
    apart = pa.Table.from_pandas(frame.drop(index=6))  # the second sequence begins later: each has its own index
    for one in (table, apart):
        ours = sh.open_sequences(written(tmp_path, one, [2, 5]), "who", "at")
        assert_same(ours, sh.read_panel(one, "who", "at"))
        labels = [(name, label) for i, name in enumerate("ab") for label in ours.index_of(i)[: ours.lengths[i]]]
        assert ours.labels.tolist() == labels
    assert isinstance(sh.open_sequences(table, "who", "at").index, pd.Index)
    assert not isinstance(sh.open_sequences(apart, "who", "at").index, pd.Index)


def test_rows_without_sequences_or_times(tmp_path):
    table = table_of([9]).select(["level", "count"])
    ours, expected = sh.open_sequences(written(tmp_path, table, [4])), sh.read_panel(table)
    assert ours.sequences is None
    assert ours.batch_shape == (1,)
    assert_same(ours, expected)
    assert len(ours.labels) == 9


def test_float32_stays_only_if_all_features_are(tmp_path):
    wide = table_of([5, 4]).select(["who", "level"])
    narrow = wide.set_column(1, "level", wide["level"].cast(pa.float32()))
    first, second = (
        written(tmp_path, t, [])[0].rename(tmp_path / f"{i}.parquet") for i, t in enumerate([narrow, wide])
    )
    assert sh.open_sequences(first, "who").like.dtype == torch.float32
    assert sh.open_sequences(second, "who").like.dtype == torch.float64
    both = [narrow.slice(0, 5), wide.slice(5)]
    mixed = sh.open_sequences(both, "who")
    assert mixed.like.dtype == torch.float64
    torch.testing.assert_close(mixed.x.rows[:5], narrow_rows(narrow)[:5].double(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(mixed.x.rows[5:], narrow_rows(wide)[5:], rtol=0, atol=0, equal_nan=True)
    turned = sh.open_sequences([wide.slice(0, 5), narrow.slice(5)], "who")
    torch.testing.assert_close(turned.x.rows[5:], narrow_rows(narrow)[5:].double(), rtol=0, atol=0, equal_nan=True)


def narrow_rows(table: pa.Table) -> torch.Tensor:
    return sh.open_sequences(table, "who").x.rows


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.float16(), pa.bool_(), pa.decimal128(24, 3), pa.null()])
def test_numbers_of_every_type(kind):
    cells = pa.array([None] * 5) if kind == pa.null() else pa.array([1, None, 0, 1, 0]).cast(kind)
    table = pa.table({"v": cells, "u": [1.0, np.nan, None, 2.0, 3.0]})
    assert_same(sh.open_sequences(table), sh.read_panel(table))


@pytest.mark.parametrize(
    "states",
    [
        [0, 1, None, 2, -1, 0],
        [0.0, float("nan"), 1.0, None, 2.0, 0.0],
        ["low", "high", None, "low", "mid", None],
        [None, None, None, None, None, None],
    ],
)
def test_knowledge_beside_the_rows(states, tmp_path):
    table = pa.table(
        {
            "who": list("aaabbb"),
            "v": [1.0, None, 2.0, 3.0, 4.0, 5.0],
            "u": pa.array([1, 2, 3, 4, 5, 6]),
            "gap": [1.0, 2.0, 0.5, 1.0, 1.0, 3.0],
            "state": states,
            "weight": [1.0, 0.5, 0.0, 2.0, 1.0, 0.0],
            "v_noise": [0.1, None, 0.2, 0.3, 0.0, 1.0],
            "u_noise": [0.0, 0.1, 0.2, 0.3, 0.0, 1.0],
        }
    )
    named = {"columns": ["v", "u"], "dt": "gap", "states": "state", "weights": "weight"}
    for noise in (["v_noise", "u_noise"], "u_noise"):
        expected = sh.read_panel(table, "who", **named, noise=noise)
        for source in (table, written(tmp_path, table, [1, 4])):
            assert_same(sh.open_sequences(source, "who", **named, noise=noise), expected)


def test_categories_that_have_an_order_keep_it():
    labels = pd.Categorical(["mid", "low", "mid"], categories=["low", "mid", "high"], ordered=True)
    frame = pd.DataFrame({"v": [1.0, 2.0, 3.0], "state": labels})
    assert_same(sh.open_sequences(frame, states="state"), sh.read_panel(frame, states="state"))


# ---- arrays and collections ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
@pytest.mark.parametrize("shape", [(13,), (13, 2), (3, 2, 2), (5, 1, 1), (2, 9, 3)])
def test_arrays_are_read_in_blocks(shape, dtype, tmp_path):
    array = (10 * np.random.default_rng(0).normal(size=shape)).astype(dtype)
    mapped = np.memmap(tmp_path / "x.bin", dtype=dtype, mode="w+", shape=shape)
    mapped[:] = array
    expected = torch.from_numpy(array.reshape(-1, shape[-1] if len(shape) > 1 else 1))
    for source in (array, mapped, torch.from_numpy(array)):
        series = sh.open_sequences(source)
        kept = torch.float32 if dtype == np.float32 else torch.float64
        torch.testing.assert_close(series.x.rows, expected.to(kept), rtol=0, atol=0)
        assert series.lengths.tolist() == ([shape[1]] * shape[0] if len(shape) == 3 else [shape[0]])
        assert series.sequences is series.features is series.index is None


class OfFiles(torch.utils.data.Dataset):
    def __init__(self, items: list) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int):
        return self.items[i]


class Streamed(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from (torch.arange(n * 1.0) for n in (3, 9, 1))


def test_items_are_sequences():
    items = [torch.arange(n * 1.0) for n in (3, 9, 1)]
    sources = [
        items,
        tuple(items),
        OfFiles(items),
        Streamed(),
        torch.utils.data.TensorDataset(torch.arange(6.0).reshape(2, 3)),
        (item.numpy() for item in items),
        [item.tolist() for item in items],
        [{"v": item} for item in items],
        [{"who": name, "v": item} for name, item in zip("abc", items, strict=True)],
        {"a": items[0], "b": items[1], "c": items[2]},
        {name: pd.DataFrame({"v": item.numpy()}) for name, item in zip("abc", items, strict=True)},
    ]
    for source in sources:
        named = isinstance(source, list) and isinstance(source[0], dict) and "who" in source[0]
        series = sh.open_sequences(source, "who" if named else None)
        rows = torch.arange(6.0) if isinstance(source, torch.utils.data.TensorDataset) else torch.cat(items)
        torch.testing.assert_close(series.x.rows[:, 0].double(), rows.double())
        assert series.sequences == (("a", "b", "c") if named or isinstance(source, dict) else None)


def test_a_row_of_lists_is_a_sequence(tmp_path):
    cells = {"v": [[1.0, None], [2.0, 3.0, 4.0], [5.0]], "t": [[0, 1], [0, 1, 2], [0]], "who": ["a", "b", "c"]}
    table = pa.table(cells)
    long = pd.DataFrame({"who": list("aabbbc"), "t": [0, 1, 0, 1, 2, 0], "v": [1.0, np.nan, 2.0, 3.0, 4.0, 5.0]})
    for source in (table, written(tmp_path, table, [1], 1), written(tmp_path, table.slice(0), [2], 5)):
        assert_same(sh.open_sequences(source, "who", "t"), sh.read_panel(long, "who", "t"))
    assert sh.open_sequences(table.select(["v"])).lengths.tolist() == [2, 3, 1]
    fixed = pa.table({"v": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2))})
    assert sh.open_sequences(fixed).x.rows.flatten().tolist() == [1.0, 2.0, 3.0, 4.0]


def test_zarr_arrays_are_read_in_blocks(tmp_path):
    zarr = pytest.importorskip("zarr")
    array = np.random.default_rng(0).normal(size=(3, 5, 2))
    stored = zarr.create_array(store=tmp_path / "x.zarr", shape=array.shape, chunks=(1, 2, 2), dtype="f8")
    stored[:] = array
    torch.testing.assert_close(sh.open_sequences(stored).x.rows, torch.from_numpy(array.reshape(-1, 2)))


def test_datasets_of_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets")
    columns = numbers_of([4, 1, 5])
    table = pa.table(columns)
    expected = sh.read_panel(table, "who", "t", ["level", "count"])
    rows = datasets.Dataset.from_dict(columns)
    for source in (rows, rows.to_iterable_dataset(), rows.select(range(len(rows)))):
        assert_same(sh.open_sequences(source, "who", "t", ["level", "count"]), expected)
    lists = datasets.Dataset.from_dict({"who": ["a", "b"], "v": [[1.0, 2.0], [3.0]]})
    assert sh.open_sequences(lists, "who").sequences == ("a", "b")


class Rows:
    """The interface of a dataset of Hugging Face."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def with_format(self, kind: str) -> "Rows":
        assert kind == "arrow"
        return self

    def iter(self, batch_size: int):
        return (self.table.slice(i, batch_size) for i in range(0, self.table.num_rows, batch_size))

    def __len__(self) -> int:
        return self.table.num_rows

    def select(self, rows: range) -> "Rows":
        return Rows(self.table.slice(rows.start, len(rows)))


def test_datasets_of_this_interface_are_read_and_divided(monkeypatch):
    monkeypatch.setattr(Rows, "__module__", "datasets.arrow_dataset")
    table = table_of([4, 1, 5])
    expected = sh.read_panel(table, "who", "t", ["level", "count"])
    assert_same(sh.open_sequences(Rows(table), "who", "t", ["level", "count"]), expected)
    assert_shares_are_the_whole(Rows(table), Choice("who", columns="level"), 3)
    with pytest.raises(ValueError, match=r"^source: the dataset has no rows"):
        sh.open_sequences(Rows(table.slice(0, 0)), "who")


def test_an_index_of_pandas_is_no_feature(tmp_path):
    frame = pd.DataFrame({"v": [1.0, 2.0, 3.0]}).iloc[[2, 0, 1]]
    frame.to_parquet(tmp_path / "x.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "x.parquet").names
    series = sh.open_sequences([tmp_path / "x.parquet"])
    assert series.features == ("v",)
    assert series.x.rows.flatten().tolist() == [3.0, 1.0, 2.0]
    assert_same(series, sh.read_panel(pq.read_table(tmp_path / "x.parquet")))


def test_labels_are_made_when_they_are_asked_for():
    table = pa.table({"who": list("aab"), "t": [0, 1, 5], "v": [1.0, 2.0, 3.0]})
    labels = sh.open_sequences(table, "who", "t").index
    assert repr(labels) == "Labels of 2 sequences"
    assert [index.tolist() for index in labels] == [index.tolist() for index in labels[:]] == [[0, 1], [5]]
    assert labels[-1].tolist() == [5]
    with pytest.raises(IndexError):
        labels[2]


def test_a_change_to_the_same_type_copies_nothing():
    series = sh.open_sequences(np.arange(6.0))
    assert series.cpu().x.scratch is series.double().x.scratch is series.to(series.like).x.scratch is series.x.scratch
    assert series.mapped(lambda x: x + 1).x.rows.flatten().tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


# ---- shares of processes ---------------------------------------------------------------------------------------------


def joined(parts: list[Series]) -> tuple[torch.Tensor, list[int], tuple[str, ...] | None]:
    names = None if parts[0].sequences is None else tuple(name for part in parts for name in part.sequences or ())
    return torch.cat([part.x.rows for part in parts]), [n for part in parts for n in part.lengths.tolist()], names


def assert_shares_are_the_whole(source, choice: Choice, n_ranks: int) -> list[Series]:
    whole = share_of(source, choice)
    parts = [share_of(source, choice, rank, n_ranks) for rank in range(n_ranks)]
    rows, lengths, names = joined(parts)
    torch.testing.assert_close(rows, whole.x.rows, rtol=0, atol=0, equal_nan=True)
    assert lengths == whole.lengths.tolist()
    assert names == whole.sequences
    return parts


@examples(20)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    n_ranks=st.integers(2, 5),
    cuts=st.lists(st.integers(0, 20), max_size=4),
    group=st.integers(1, 5),
    write=st.sampled_from([None, as_csv, as_feather]),
)
def test_shares_of_files_are_the_whole(lengths, n_ranks, cuts, group, write, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shares")
    table = table_of(lengths)
    cuts = sorted(min(cut, table.num_rows) for cut in cuts)
    paths = written(folder, table, cuts, group)
    if write is not None:
        paths = [write(pq.read_table(p), made) for p in paths for made in [folder / p.stem] if made.mkdir() is None]
    parts = assert_shares_are_the_whole(paths, Choice("who", "t", ["level", "count"]), n_ranks)
    if write is None and max(lengths) == 1:  # balanced by rows
        assert max(part.n_sequences for part in parts) - min(part.n_sequences for part in parts) <= 1


@pytest.mark.parametrize("n_ranks", [2, 3, 7])
def test_shares_of_other_sources_are_the_whole(n_ranks, tmp_path):
    items = [torch.arange(n * 1.0) for n in (3, 9, 1, 2)]
    table = table_of([5, 2, 6])
    lists = pa.table({"v": [[1.0], [2.0, 3.0], [4.0, 5.0], [6.0]]})
    arrays = (np.arange(30.0).reshape(5, 3, 2), np.arange(14.0).reshape(7, 2))
    for source in (items, OfFiles(items), *arrays, lists, dict(enumerate(items))):
        assert_shares_are_the_whole(source, Choice(), n_ranks)
    for source in (table, [table.slice(0, 4), table.slice(4)], pyarrow.dataset.dataset(table)):
        assert_shares_are_the_whole(source, Choice("who", columns="level"), n_ranks)


def test_a_share_may_be_empty(tmp_path):
    parts = assert_shares_are_the_whole(written(tmp_path, table_of([8]), [4]), Choice("who", "t", "level"), 3)
    assert [part.n_sequences for part in parts] == [1, 0, 0]
    empty = parts[1]
    assert empty.on_disk
    assert empty.batch_shape == (0,)
    assert empty.n_observed == 0
    assert "0 sequences" in empty._repr_html_()


def test_processes_agree_on_types_labels_and_errors(tmp_path):
    table = pa.table({"who": list("aabbcc"), "v": pa.array([1, 2, 3, 4, 5, 6], pa.float32()), "s": list("wwvvuu")})
    files = written(tmp_path, table, [2, 4])
    wide = pq.read_table(files[2])
    pq.write_table(wide.set_column(1, "v", wide["v"].cast(pa.float64())), files[2])
    choice = Choice("who", columns="v", states="s")

    def all_of(n_ranks: int) -> list[Series]:
        facts = [sources.spooled(files, choice, rank, n_ranks).facts for rank in range(n_ranks)]
        return [share_of(files, choice, rank, n_ranks, lambda fact: facts) for rank in range(n_ranks)]

    whole, parts = share_of(files, choice), all_of(3)
    assert all(part.like.dtype == torch.float64 for part in parts)
    assert all(part.state_names == whole.state_names == ("u", "v", "w") for part in parts)
    assert torch.cat([part.states.rows for part in parts]).tolist() == whole.states.rows.tolist()
    with pytest.raises(ValueError, match=r"^source: process 1 of 2 cannot read its part: x: got inf"):
        share_of(files, choice, 0, 2, lambda fact: [fact, "x: got inf in row 1 of part-1"])
    twice = sources.spooled(files[:1], choice, 0, 1).facts
    with pytest.raises(ValueError, match=r"^sequence: got a sequence 'a' in the rows of two processes"):
        share_of(files, choice, 0, 2, lambda fact: [fact, twice])


def test_a_source_without_a_length_is_not_divided():
    with pytest.raises(ValueError, match=r"^source: the iterable has no length, so several processes cannot"):
        share_of((torch.ones(2) for _ in range(3)), Choice(), 0, 2)
    with pytest.raises(ValueError, match=r"^source: the table has no length"):
        share_of(table_of([3]).to_reader(), Choice("who"), 1, 2)


# ---- memory ----------------------------------------------------------------------------------------------------------

MEMORY = """
import resource, sys
import pyarrow as pa, pyarrow.parquet
import samplehold as sh

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

sh.open_sequences(sys.argv[1], "who", "t")  # all imports, and a few blocks of rows
before = peak()
series = sh.open_sequences(sys.argv[2], "who", "t")
assert len(series.x.rows) == int(sys.argv[3])
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("row_group_size", [2**18, 2**30])
def test_memory_does_not_grow_with_a_source(row_group_size, tmp_path):
    n, draw = 8_000_000, np.random.default_rng(0)
    who = pa.array([f"subject {i}" for i in range(n // 1000)]).take(pa.array(np.arange(n) // 1000))
    features = {name: draw.normal(size=n) for name in ("u", "v", "w")}
    table = pa.table({"who": who, "t": np.arange(n) % 1000, **features})
    pq.write_table(table, tmp_path / "big.parquet", row_group_size=row_group_size)
    pq.write_table(table.slice(0, n // 8), tmp_path / "small.parquet", row_group_size=row_group_size)
    more = (n - n // 8) * 8 * 4  # bytes of times and features
    paths = [str(tmp_path / "small.parquet"), str(tmp_path / "big.parquet")]
    assert int(printed(MEMORY, *paths, str(n))) < 0.5 * more


# ---- processes of torch.distributed ----------------------------------------------------------------------------------

PROCESS = """
import sys
import torch.distributed as group
import samplehold as sh

rank, store, *files = sys.argv[1:]
group.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
try:
    print(list(sh.open_sequences(files, "who", "t", ["level"]).sequences))
except ValueError as error:
    print(error)
group.destroy_process_group()
"""


def outputs_of_two(folder: Path, files: list[Path]) -> list[str]:
    """What two processes of one group print."""
    arguments = [str(folder / "store"), *map(str, files)]
    (folder / "store").unlink(missing_ok=True)
    started = [
        subprocess.Popen([sys.executable, "-c", PROCESS, str(rank), *arguments], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    return [process.communicate(timeout=120)[0].strip() for process in started]


@pytest.mark.slow
def test_two_processes_read_a_share_each_and_fail_together(tmp_path):
    files = written(tmp_path, table_of([4, 3, 5, 4]), [6, 10])
    assert outputs_of_two(tmp_path, files) == ["['subject 0', 'subject 1', 'subject 2']", "['subject 3']"]
    pq.write_table(pq.read_table(files[2]).slice(1), files[2])
    bad = pa.table(
        {"who": ["subject 9", "subject 9"], "t": [1, 0], "level": [1.0, 2.0], "count": [1, 2], "dose": [0.1, 0.2]}
    )
    pq.write_table(bad, tmp_path / "part-3.parquet")
    healthy, failed = outputs_of_two(tmp_path, [*files, tmp_path / "part-3.parquet"])
    assert failed.startswith("time: t goes back in row 2 of")
    assert healthy == f"source: process 1 of 2 cannot read its part: {failed}"


class Sequences(torch.utils.data.Dataset):
    """Ten sequences of five steps."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> torch.Tensor:
        if not 0 <= i < 10:
            raise IndexError
        return torch.randn(5, 2, generator=torch.Generator().manual_seed(i), dtype=torch.float64)


def test_a_dataset_and_a_large_memory_map_stand_in_place_of_x(tmp_path, monkeypatch):
    monkeypatch.setattr("samplehold.switching.data.sources.MAPPED", 100)
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal(2))
    x = torch.stack([Sequences()[i] for i in range(10)])
    mapped = np.memmap(tmp_path / "x.bin", np.float64, "w+", shape=(10, 5, 2))
    mapped[:] = x.numpy()
    small = np.memmap(tmp_path / "y.bin", np.float64, "w+", shape=(2, 5, 2))
    small[:] = x[:2].numpy()
    for source in (Sequences(), mapped):
        series = model.read(source)
        assert series.on_disk
        assert torch.equal(series.rows, x.flatten(0, 1))
    monkeypatch.setattr("samplehold.switching.data.sources.MAPPED", 10_000)
    assert not model.read(small).on_disk
    with pytest.raises(ValueError, match="lengths: the Series has its own; leave lengths out"):
        model.read(Sequences(), lengths=[5] * 10)

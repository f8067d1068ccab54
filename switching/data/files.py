"""Checks that a user's path has something to read, before any slow import."""

from pathlib import Path

WORKBOOKS = (".xlsx", ".xls", ".xlsm", ".ods")


def check_file(path: Path, name: str = "data") -> None:
    """Raise ValueError if there is no file with a table."""
    if not path.exists():
        raise ValueError(f"{name}: there is no file {path}.")
    if not path.is_file():
        raise ValueError(f"{name}: {path} is not a file; give a CSV or Parquet file.")
    if path.suffix.lower() in WORKBOOKS:
        raise ValueError(f"{name}: {path} is a workbook; save its sheet as a CSV file.")
    if path.stat().st_size == 0:
        raise ValueError(f"{name}: {path} is empty; give a table with a header and at least one row.")


def check_files(path: Path) -> None:
    """Raise ValueError if there is no folder, and no file with a table."""
    if not path.is_dir():
        check_file(path)


def check_model(path: Path) -> None:
    """Raise ValueError if there is no folder that can hold a model."""
    if not path.is_dir():
        raise ValueError(f"model: there is no folder {path}; give the folder that `samplehold fit` has written.")

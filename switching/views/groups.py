"""Datasets of xarray by the names of ArviZ's groups, as a file and as the object that the installed ArviZ takes.

All that differs between versions of ArviZ stands here. This file imports xarray alone, so it can be tested beside an
ArviZ for which there is no torch.
"""

from dataclasses import dataclass
from typing import Any

import xarray as xr


@dataclass(frozen=True)
class Groups:
    """The datasets of an `InferenceData` by the names of their groups, and its attributes."""

    datasets: dict[str, xr.Dataset]
    attributes: dict[str, Any]


def wrapped(groups: Groups) -> Any:
    """The groups as the installed ArviZ has them: an `InferenceData`, or from its version 1 on an `xarray.DataTree`."""
    import arviz as az

    if int(az.__version__.split(".")[0]) < 1:
        return az.InferenceData(attrs=groups.attributes, **groups.datasets)  # pyright: ignore[reportArgumentType]
    tree = xr.DataTree.from_dict(groups.datasets)
    tree.attrs.update(groups.attributes)
    return tree


def netcdf(groups: Groups) -> bytes:
    """The bytes of ArviZ's `to_netcdf`, made in memory, because on a full disk the library ends the process."""
    import netCDF4
    from xarray.backends import NetCDF4DataStore

    file = netCDF4.Dataset("in memory", "w", memory=1)
    file.setncatts(groups.attributes)
    for name, group in groups.datasets.items():
        packed = {key: {"zlib": True} for key, variable in group.variables.items() if variable.dtype.kind in "biuf"}
        group.dump_to_store(NetCDF4DataStore(file.createGroup(name)), encoding=packed)
    return bytes(file.close())

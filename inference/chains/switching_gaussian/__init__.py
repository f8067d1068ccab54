"""Switching linear models as filters and samplers take them, as tables of numbers: see `plain`."""

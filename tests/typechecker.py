"""The run-time type checker of the tests: as PEP 484 has it, an int may stand where a float is expected."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

"""The evidence of one series under many parameters at once, for searches: see `plain`."""

from ...numerics.op import Variants
from . import plain

evidence: Variants = Variants(plain.evidence)

"""Sticky HDP dynamics: the family of their rows, message passing, and what they say about the number of states."""

import math

import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from oracles.asserts import assert_close

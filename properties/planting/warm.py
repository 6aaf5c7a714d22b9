"""Imports that every trial needs, made once by the process that trials are forked from."""

import sys

import kernels  # noqa: F401
import properties.jobs
import properties.simulator
import properties.targets.ours  # noqa: F401
from properties.planting.closure import closure, path_of

for _name in [*sys.modules]:
    if path_of(_name) is not None:
        closure([_name])

"""Imported by the process that workers are forked from, the last of a run, also of one that is
killed: it ends what targets have started. Outside of a run it does nothing.
"""

import atexit
import os

from properties.fuzz.fork_server import end_strays
from properties.fuzz.strays import MARK

if MARK in os.environ:
    atexit.register(end_strays, os.environ[MARK])

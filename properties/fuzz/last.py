"""Imported by the process that workers are forked from, and by no other: it is the last of a run,
also of one that is killed, and ends what targets have started.
"""

import atexit
import os

from properties.fuzz.fork_server import MARK, end_strays

atexit.register(end_strays, os.environ[MARK])

"""What holds for all tests."""

from __future__ import annotations

import os
import signal

# Spark takes ten seconds to start: only the tests that are about the pipeline have a server with one.
os.environ["DOLAKE_PIPELINE_ENABLED"] = "false"
os.environ["DOLAKE_QUERY_ENABLED"] = "false"

# A shell's background job ignores Ctrl-C, and so would all that tests start: they send it to see what happens.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

"""What holds for all tests."""

from __future__ import annotations

import os

# Spark takes ten seconds to start: only the tests that are about the pipeline have a server with one.
os.environ["DOLAKE_PIPELINE_ENABLED"] = "false"
os.environ["DOLAKE_QUERY_ENABLED"] = "false"

"""All streams of the corpus."""

from __future__ import annotations

from tests.corpus import declared, names, nesting, numbers, rows, texts

STREAMS = (*names.STREAMS, *numbers.STREAMS, *texts.STREAMS, *nesting.STREAMS, *rows.STREAMS, *declared.STREAMS)

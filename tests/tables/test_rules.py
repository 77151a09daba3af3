"""What the lake keeps of a row: whichever way the row comes."""

from __future__ import annotations

import json

from dolake.tables.rules import ReadingRules, without_secrets

RULES = ReadingRules(excluded=("pin",), masks=(("email", "hash"), ("name", "truncate(1)")), mask_secret="salt")


def test_a_row_that_was_in_the_lake_keeps_its_hashes_and_loses_all_other_secrets() -> None:
    sent = b'{"id":1,"email":"ann@example.org","name":"Ann","pin":7}'
    kept = without_secrets(sent, RULES)
    assert without_secrets(kept, RULES, is_own=True) == kept
    assert without_secrets(kept, RULES) != kept, "a source's text is hashed, whatever it looks like"
    assert without_secrets(sent, RULES, is_own=True) == kept, "a column that is masked since then is masked now"
    assert json.loads(without_secrets(b'{"email":null}', RULES, is_own=True)) == {"email": None}

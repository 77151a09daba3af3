"""docs/reference/settings.md says about every setting exactly what the code says.

A missing row is printed as it should stand, to be pasted. `python tests/tidy/test_settings_documented.py` prints all.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dolake.settings import NOT_SETTINGS, ORDERS, SETTINGS, Setting

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def row_of(setting: Setting) -> str:
    """The line of the table that belongs to this setting."""
    cells = (
        f"`{setting.key}`",
        f"`{setting.environment_name}`",
        default_of(setting),
        setting.description,
        setting.allowed[0].upper() + setting.allowed[1:],
        "after a restart" if setting.needs_restart else "at once",
        "now" if setting.is_in_effect else "later release",
    )
    return f"| {' | '.join(cells)} |"


def default_of(setting: Setting) -> str:
    text = f"`{json.dumps(setting.default)}`"
    is_size = type(setting.default) is int and setting.default % 1024**2 == 0 and setting.default > 0
    return f"{text} ({size_in_words(setting.default)})" if is_size else text


def size_in_words(size: int) -> str:
    return f"{size // 1024**3} GiB" if size % 1024**3 == 0 else f"{size // 1024**2} MiB"


@pytest.mark.parametrize("key", SETTINGS)
def test_every_setting_is_documented_as_it_is(key: str) -> None:
    row = row_of(SETTINGS[key])
    assert row in PAGE.read_text().splitlines(), f"{PAGE.name} lacks this line:\n{row}"


def test_the_page_describes_no_setting_that_does_not_exist() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `") and "| `DOLAKE_" in line]
    assert sorted(rows) == sorted(map(row_of, SETTINGS.values()))


def test_rules_between_settings_and_variables_that_are_no_settings_are_documented() -> None:
    page = PAGE.read_text()
    for order in ORDERS:
        assert f"- `{order.smaller}` must be {order.relation} `{order.larger}`\n" in page
    for name in NOT_SETTINGS:
        assert f"`{name}`" in page


if __name__ == "__main__":
    print("\n".join(map(row_of, SETTINGS.values())))

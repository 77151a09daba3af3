"""The reference pages name everything that the code has: routes, metrics, errors, commands, messages, the client.

Everything is computed from the modules, so a page fails as soon as the code gains, renames or loses something.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families

import dolake
from dolake import errors
from dolake.catalog.rest import ROUTES as CATALOG_ROUTES
from dolake.cli.app import app as command_line
from dolake.client import Receipt, connect
from dolake.errors import DoLakeError
from dolake.server.app import build_app
from dolake.server.home import Home
from dolake.server.lake import Lake
from dolake.server.metrics import metrics_text
from dolake.settings import load_settings
from dolake.wire import messages

DOCS = Path(__file__).resolve().parents[2] / "docs"
REFERENCE = DOCS / "reference"
PAGES = sorted(DOCS.rglob("*.md"))


# --- reading pages ---------------------------------------------------------------------------------------------------


def page(name: str) -> str:
    return (REFERENCE / name).read_text()


def section(name: str, heading: str) -> str:
    """The text under this heading, up to the next one of the same rank or a higher one."""
    rank = heading.partition(" ")[0]
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{len(rank)}}} |\Z)", page(name), re.DOTALL | re.MULTILINE)
    assert found, f"{name} has no heading «{heading}»"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Every row of every table, as its cells, without the lines that only draw."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not re.fullmatch(r"[|\s:-]+", line)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def names(text: str) -> set[str]:
    """What stands in backticks in the first cell of any row."""
    return {name for cells in rows(text) for name in re.findall(r"`([^`]+)`", cells[0])}


def assert_lists(name: str, found: set[str], wanted: set[str]) -> None:
    """The page has a row for each of these, and none for what does not exist."""
    assert not wanted - found, f"{name} does not describe {sorted(wanted - found)}"
    assert not found - wanted, f"{name} describes {sorted(found - wanted)}, which the code does not have"


# --- a lake to ask ---------------------------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A lake that was opened and closed again: it has everything that can be asked, and no port."""
    settings = load_settings(home=tmp_path, config_file=None, environ={}, flags={})

    async def opened(home: Home) -> Lake:
        lake = Lake(home, settings)
        await lake.open()
        lake.start_pipeline("http://127.0.0.1:8787")  # only made: nobody supervises it
        lake.start_query()
        await lake.open_subscriptions()
        await lake.close()
        return lake

    with Home(tmp_path) as home:
        yield asyncio.run(opened(home))


# --- HTTP ------------------------------------------------------------------------------------------------------------


def test_every_route_is_in_the_table_and_has_a_section(lake: Lake) -> None:
    base = lake.settings.current.server.base_path
    routes = {
        f"{route.method} {route.resource.canonical}"
        for route in build_app(lake).router.routes()
        if route.resource is not None and route.method not in ("HEAD", "*")  # what is left goes to the catalog
    }
    at_root = {route for route in routes if not route.partition(" ")[2].startswith(base)}
    listed = names(page("http.md").partition("## Who may ask")[0])
    assert_lists("http.md", listed, at_root)
    anchors = anchors_of(REFERENCE / "http.md")
    for cells in rows(page("http.md").partition("## Who may ask")[0])[1:]:
        found = re.fullmatch(r"\[`[^`]+`\]\(#([\w-]+)\)", cells[0])
        assert found, f"{cells[0]} leads nowhere"
        assert found[1] in anchors, f"{cells[0]} leads nowhere"


def test_every_route_of_the_catalog_is_described_on_its_own_page() -> None:
    served = {f"{method} /v1{path}" for method, path, _ in CATALOG_ROUTES}
    listed = {name for name in names(page("catalog.md")) if re.match(r"[A-Z]+ /", name)}
    assert_lists("catalog.md", listed, served)
    operators = {name for name in names(page("http.md")) if re.match(r"[A-Z]+ /", name)}
    assert not operators & served, "the routes of the catalog belong to catalog.md"


def test_every_error_of_the_catalog_is_described_on_its_page() -> None:
    own = {error.code for error in all_errors() if error.__module__.startswith("dolake.catalog.")}
    described = {
        code for cells in rows(section("catalog.md", "## Errors")) for code in re.findall(r"`(\w+)`", cells[1])
    }
    assert not own - described, f"catalog.md does not describe {sorted(own - described)}"


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_every_metric_is_described_with_its_type_and_labels(lake: Lake) -> None:
    lake.receiver.stats.ack_counts["ok"] = lake.receiver.stats.nack_counts["invalid_format"] = 1
    assert lake.query
    lake.query.count("ok", 0.1)
    assert lake.subscriptions
    lake.subscriptions.feeds.stats.ended_counts["too_slow"] = 1
    lake.query.count_lookup("ok", 0.1)
    text = metrics_text(lake)[0].decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    labels = {
        family.name: {label for sample in family.samples for label in sample.labels}
        for family in text_string_to_metric_families(text)
    }
    described = {cells[0].strip("`"): cells for cells in rows(page("metrics.md")) if cells[0].startswith("`")}
    assert_lists("metrics.md", set(described), set(kinds))
    for name, kind in kinds.items():
        cells = described[name]
        assert cells[1] == kind, f"{name} is a {kind}"
        for label in labels[name.removesuffix("_total")]:
            assert f"`{label}`" in cells[2], f"{name} has the label {label}"


# --- errors ----------------------------------------------------------------------------------------------------------


def all_errors() -> Iterator[type[DoLakeError]]:
    """Every class of the tree, wherever it is defined. Only who adds to the tree is imported: others may be heavy."""
    bases = [name for name, found in vars(errors).items() if inspect.isclass(found) and issubclass(found, DoLakeError)]
    adds_to_tree = re.compile(rf"^class \w+\((errors\.)?({'|'.join(bases)})\)", re.MULTILINE)
    for module in pkgutil.walk_packages(dolake.__path__, "dolake."):
        spec = importlib.util.find_spec(module.name)
        if spec and spec.origin and adds_to_tree.search(Path(spec.origin).read_text()):
            importlib.import_module(module.name)
    waiting = [DoLakeError]
    while waiting:
        error = waiting.pop()
        if error.__module__.startswith("dolake."):
            yield error
            waiting += error.__subclasses__()


def test_every_error_is_in_the_tree_and_described_with_its_code() -> None:
    found = {error.__name__: error for error in all_errors()}
    described = {cells[0].strip("`"): cells for cells in rows(section("errors.md", "## Classes"))[1:]}
    tree = page("errors.md").partition("```text")[2].partition("```")[0]
    assert_lists("errors.md", set(described), set(found))
    assert_lists("errors.md", set(re.findall(r"\w*[A-Z]\w+", tree)), set(found))
    for name, error in found.items():
        assert described[name][1] == f"`{error.code}`", f"the code of {name} is {error.code}"
        answer = "yes" if error.retryable else "no"
        assert described[name][2].startswith(answer), f"{name}: retryable is {answer}"


# --- commands --------------------------------------------------------------------------------------------------------


def all_commands() -> dict[str, set[str]]:
    """Each command that does something, as it is typed, and all spellings of its options."""
    found: dict[str, set[str]] = {}
    waiting: list[tuple[str, Any]] = [("dolake", typer.main.get_command(command_line))]
    while waiting:
        typed, command = waiting.pop()
        command = getattr(command, "loaded", command)  # of those whose modules are loaded when they are called
        children = getattr(command, "commands", {})
        waiting += [(f"{typed} {name}", child) for name, child in children.items()]
        options = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
        if options or not children:
            found[typed] = options
    return found


@pytest.mark.parametrize("typed", all_commands())
def test_every_command_is_described_with_its_options(typed: str) -> None:
    listed = names(section("cli.md", f"## {typed}"))
    wanted = all_commands()[typed] - {"--help"}
    options = {name for name in listed if name.startswith("-") or name in wanted}
    assert_lists("cli.md", options - {"--help"}, wanted)


def test_the_page_describes_no_command_that_does_not_exist() -> None:
    assert_lists("cli.md", set(re.findall(r"^## (dolake.*)$", page("cli.md"), re.MULTILINE)), set(all_commands()))


# --- messages --------------------------------------------------------------------------------------------------------


def all_messages() -> dict[str, set[str]]:
    """The fields of every message, by its `type`, and of everything inside messages, by its class."""
    found: dict[str, set[str]] = {}
    unions = (messages.ClientMessage, messages.ReceivedMessage, messages.ServerMessage)
    waiting: list[Any] = list(msgspec.inspect.multi_type_info(unions))
    while waiting:
        match waiting.pop():
            case msgspec.inspect.StructType() as struct if struct.fields:
                own = {str(struct.tag_field)} if struct.tag else set()
                found[str(struct.tag or struct.cls.__name__)] = own | {field.encode_name for field in struct.fields}
                waiting += [field.type for field in struct.fields]
            case msgspec.inspect.UnionType() as union:
                waiting += union.types
            case msgspec.inspect.ListType() as items:
                waiting.append(items.item_type)
            case msgspec.inspect.Metadata() as annotated:
                waiting.append(annotated.type)
    return found


def field_tables(text: str) -> list[set[str]]:
    """What each table of fields lists."""
    tables = [part for part in text.split("\n\n") if part.startswith("| Field")]
    return [names(table.partition("\n")[2]) for table in tables]


@pytest.mark.parametrize("message", all_messages())
def test_every_message_has_a_table_of_exactly_its_fields(message: str) -> None:
    heading = f"### `{message}`"
    has_section = heading in page("protocol.md")
    assert has_section or not message.islower(), f"protocol.md has no heading «{heading}»"
    tables = field_tables(section("protocol.md", heading))[:1] if has_section else field_tables(page("protocol.md"))
    wanted = all_messages()[message]
    assert wanted in tables, f"no table of protocol.md has the fields {sorted(wanted)} of {message}, and no others"


def test_the_page_describes_no_field_that_does_not_exist() -> None:
    known = set().union(*all_messages().values())
    listed = set().union(*field_tables(page("protocol.md")))
    assert not listed - known, f"protocol.md describes {sorted(listed - known)}, which no message has"


def test_every_refusal_is_described() -> None:
    assert_lists("protocol.md", names(section("protocol.md", "## Refusals")), set(get_args(messages.NackReason)))


@pytest.mark.parametrize(
    ("heading", "title", "wanted"),
    [
        ("### `ack`", "| Status |", get_args(messages.AckStatus)),
        ("### `status`", "| State |", get_args(messages.ServerState)),
    ],
)
def test_every_status_and_state_is_described(heading: str, title: str, wanted: tuple[str, ...]) -> None:
    (table,) = [part for part in section("protocol.md", heading).split("\n\n") if part.startswith(title)]
    assert_lists("protocol.md", names(table), set(wanted))


def test_every_reason_for_a_flush_is_described() -> None:
    text = section("protocol.md", "### `flush_request`")
    for reason in get_args(messages.FlushReason):
        assert f"`{reason}`" in text


def test_the_limits_are_those_of_the_code() -> None:
    text = page("protocol.md")
    for limit in (messages.EVENTS_MAX, messages.ROW_ID_LENGTH_MAX, messages.SEQUENCE_MAX):
        assert f"{limit:,}" in text


# --- the client ------------------------------------------------------------------------------------------------------


def test_every_parameter_of_connect_is_described_with_its_default() -> None:
    parameters = inspect.signature(connect).parameters
    described = {cells[0].strip("`"): cells[1] for cells in rows(section("client.md", "## connect()"))[1:]}
    assert_lists("client.md", set(described), set(parameters))
    for name, parameter in parameters.items():
        if isinstance(parameter.default, int) and not isinstance(parameter.default, bool):
            assert described[name] == f"{parameter.default:,}", f"the default of {name} is {parameter.default:,}"


def test_every_method_and_attribute_of_a_client_is_described() -> None:
    lake = connect("http://lake")  # nothing is opened before `async with`
    wanted = {name for name in dir(lake) if not name.startswith("_")}
    text = section("client.md", "## Methods").partition("### Receipt")[0]
    listed = {re.sub(r"^await |\(.*\)$", "", name) for name in names(text)}
    assert_lists("client.md", listed, wanted)


def test_every_field_of_a_receipt_is_described() -> None:
    wanted = {field.name for field in dataclasses.fields(Receipt)}
    assert_lists("client.md", names(section("client.md", "### Receipt")), wanted)


# --- links -----------------------------------------------------------------------------------------------------------


def anchors_of(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{target} does not exist"
        assert not anchor or anchor in anchors_of(there), f"{target}: no such heading"


def test_the_map_of_the_docs_leads_to_every_page() -> None:
    linked = {(DOCS / target).resolve() for target in re.findall(r"\]\(([^)#]+)", (DOCS / "README.md").read_text())}
    pages = {path for path in PAGES if path.name != "README.md" and path.parent.resolve() not in linked}
    assert not {path.name for path in pages if path.resolve() not in linked}

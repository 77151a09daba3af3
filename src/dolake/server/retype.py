"""Give a column of a table another type, because somebody asks for it: over HTTP.

From app.py; through spark_process.py to the pipeline, whose retyping.py does it. docs/reference/http.md has the shapes.
"""

from __future__ import annotations

from aiohttp import web

from dolake.catalog.history import describe_schema
from dolake.catalog.values import Json
from dolake.errors import InvalidInput
from dolake.identity.request import grant_of
from dolake.server.compaction import body_of, pipeline_of
from dolake.server.operations import LAKE, json_response
from dolake.server.tables import load_table, table_in
from dolake.server.upkeep import checked_tables, job_json

_KEYS = frozenset(("column", "type"))
_TEXT = ("text", "string")
_HINT = 'send {"column": "deletedAt", "type": "text"}'


async def retype(request: web.Request) -> web.Response:
    """A column becomes text, with the values that wait in `_rescued`; answers at once with the job."""
    lake, name, body = request.app[LAKE], table_in(request), await body_of(request)
    if unknown := sorted(body.keys() - _KEYS):
        raise InvalidInput(f"unknown key {unknown[0]!r}", hint=_HINT)
    column = body.get("column")
    if not isinstance(column, str) or not column:
        raise InvalidInput("column must be the name of a column", hint=_HINT)
    if body.get("type") not in _TEXT:
        raise InvalidInput("type must be text: every value fits it", hint=_HINT)
    names = ".".join(name.namespace), name.name
    tables = await lake.catalog.run(checked_tables, lake.catalog, *names, grant_of(request))
    schema = await lake.catalog.run(lambda: describe_schema(name, load_table(lake, name)))
    _check(schema, column)
    report = pipeline_of(lake).ask_upkeep(tables, ("columns",), retype={column: "string"})
    return json_response(job_json(report), status=202)


def _check(schema: Json, column: str) -> None:
    types = {field["name"]: field["type"] for field in schema["fields"]}
    if column not in types:
        raise InvalidInput(
            f"{schema['table']} has no column {column[:80]!r}", hint=f"it has {', '.join(sorted(types))[:400]}"
        )
    if types[column] == "string":
        raise InvalidInput(f"{column} of {schema['table']} is text already", hint="there is nothing to do")
    if not isinstance(types[column], str):
        raise InvalidInput(
            f"{column} of {schema['table']} is no plain value", hint="objects and lists keep their types"
        )


ROUTES = [("POST", "/v1/tables/{namespace}/{table}/retype", retype)]

"""Who gets which answer: a row for each route and each message, by hand. A new route without a row fails the test.

Columns of ROUTES, each a status: without a token; tokens of `tenant_a` with the scopes ingest, read, write, admin,
asking about tenant_a; the last three of them asking about tenant_b (`-` where a request names no namespace); tokens of
the whole lake with read, write, admin. The server runs without pipeline and without queries: 409 is «allowed, but
off», and where a path names what is not there (a job, a file) 404 is «allowed, but not there». Rows behind `!`
change what they ask for, which is made anew after each request. BODIES has what is sent, `$ns` being the namespace.
"""

from __future__ import annotations

ROUTES = """
route                                                nobody   ingest read write admin   read_b write_b admin_b   read write admin
GET /                                                200      200 200 200 200           -   -   -                200 200 200
GET /health                                          200      200 200 200 200           -   -   -                200 200 200
GET /health/live                                     200      200 200 200 200           -   -   -                200 200 200
GET /health/ready                                    200      200 200 200 200           -   -   -                200 200 200
POST /v1/oauth/tokens                                400      400 400 400 400           -   -   -                400 400 400
GET /openapi.json                                    401      200 200 200 200           -   -   -                200 200 200
GET /v1/config                                       401      200 200 200 200           -   -   -                200 200 200
GET /ws                                              401      400 403 403 400           -   -   -                403 403 400
POST /flush                                          401      200 403 200 200           -   -   -                403 200 200
GET /status                                          401      403 200 200 200           -   -   -                200 200 200
GET /metrics                                         401      403 200 200 200           -   -   -                200 200 200
GET /v1/memory-stats                                 401      403 403 403 403           -   -   -                403 403 200
GET /v1/write-stats                                  401      403 403 403 403           -   -   -                403 403 200
GET /v1/scaling/status                               401      403 403 403 403           -   -   -                403 403 200
GET /v1/settings                                     401      403 403 403 403           -   -   -                403 403 200
PATCH /v1/config                                     401      403 403 403 403           -   -   -                403 403 200
GET /v1/compaction/candidates                        401      403 200 200 200           -   -   -                200 200 200
POST /v1/compaction/run                              401      403 403 403 409           -   -   -                403 403 409
POST /v1/compaction/auto                             401      403 403 403 409           -   -   -                403 403 409
GET /v1/compaction/metrics                           401      403 200 200 200           -   -   -                200 200 200
GET /v1/compaction/jobs                              401      403 200 200 200           -   -   -                200 200 200
GET /v1/compaction/jobs/{job}                        401      403 404 404 404           -   -   -                404 404 404
DELETE /v1/compaction/jobs/{job}                     401      403 403 403 409           -   -   -                403 403 409
GET /v1/tiers                                        401      403 200 200 200           -   -   -                200 200 200
POST /v1/tiers/move                                  401      403 403 403 400           -   -   -                403 403 400
GET /v1/tables                                       401      403 200 200 200           -   -   -                200 200 200
GET /v1/snapshots                                    401      403 200 200 200           -   -   -                200 200 200
GET /v1/tables/{namespace}/{table}/snapshots         401      403 200 200 200           404 404 404              200 200 200
GET /v1/tables/{namespace}/{table}/schema            401      403 200 200 200           404 404 404              200 200 200
GET /v1/tables/{namespace}/{table}/rows/{key}        401      403 409 409 409           404 404 404              409 409 409
POST /v1/tables/{namespace}/{table}/rows             401      403 409 409 409           404 404 404              409 409 409
POST /v1/tables/{namespace}/{table}/rollback         401      403 403 400 400           403 404 404              403 400 400
POST /v1/tables/{namespace}/{table}/forget           401      403 403 403 409           403 403 404              403 403 409
POST /v1/tables/{namespace}/{table}/retype           401      403 403 403 400           403 403 404              403 403 400
GET /v1/freshness                                    401      403 200 200 200           -   -   -                200 200 200
GET /v1/sources                                      401      403 200 200 200           -   -   -                200 200 200
POST /v1/sources                                     401      403 403 403 403           -   -   -                403 403 400
POST /v1/sources/{source}/pause                      401      403 403 403 403           -   -   -                403 403 404
POST /v1/sources/{source}/resume                     401      403 403 403 403           -   -   -                403 403 404
DELETE /v1/sources/{source}                          401      403 403 403 403           -   -   -                403 403 404
GET /v1/quarantine                                   401      403 200 200 200           -   -   -                200 200 200
GET /v1/quarantine/{namespace}/{table}               401      403 409 409 409           404 404 404              409 409 409
POST /v1/quarantine/{namespace}/{table}/replay       401      403 403 409 409           403 404 404              403 409 409
POST /v1/quarantine/{namespace}/{table}/drop         401      403 403 409 409           403 404 404              403 409 409
POST /v1/query                                       401      403 409 409 409           -   -   -                409 409 409
POST /v1/query/plan                                  401      403 409 409 409           -   -   -                409 409 409
POST /v1/query/route                                 401      403 409 409 409           -   -   -                409 409 409
POST /v1/diff                                        401      403 409 409 409           -   -   -                409 409 409
GET /v1/queries                                      401      403 200 200 200           -   -   -                200 200 200
DELETE /v1/query/{query}                             401      403 409 409 409           -   -   -                409 409 409
GET /v1/subscribe                                    401      403 409 409 409           -   -   -                409 409 409
GET /v1/subscriptions                                401      403 409 409 409           -   -   -                409 409 409
DELETE /v1/subscriptions/{subscription}              401      403 409 409 409           -   -   -                409 409 409
POST /v1/subscriptions/{subscription}/ack            401      403 409 409 409           -   -   -                409 409 409
GET /v1/published                                    401      403 200 200 200           -   -   -                200 200 200
POST /v1/published                                   401      403 403 403 403           -   -   -                403 403 403
GET /v1/namespaces                                   401      403 200 200 200           -   -   -                200 200 200
POST /v1/namespaces                                  401      403 403 409 409           403 403 403              403 409 409
GET /v1/namespaces/{namespace}                       401      403 200 200 200           404 404 404              200 200 200
HEAD /v1/namespaces/{namespace}                      401      403 204 204 204           404 404 404              204 204 204
DELETE /v1/namespaces/{namespace}                    401      403 403 409 409           403 404 404              403 409 409
POST /v1/namespaces/{namespace}/properties           401      403 403 200 200           403 404 404              403 200 200
PATCH /v1/namespaces/{namespace}/properties          401      403 403 200 200           403 404 404              403 200 200
GET /v1/namespaces/{namespace}/tables                401      403 200 200 200           404 404 404              200 200 200
! POST /v1/namespaces/{namespace}/tables             401      403 403 200 200           403 404 404              403 200 200
GET /v1/namespaces/{namespace}/tables/{table}        401      403 200 200 200           404 404 404              200 200 200
HEAD /v1/namespaces/{namespace}/tables/{table}       401      403 204 204 204           404 404 404              204 204 204
POST /v1/namespaces/{namespace}/tables/{table}       401      403 403 200 200           403 404 404              403 200 200
POST /v1/namespaces/{namespace}/tables/{table}/commits 401    403 403 200 200           403 404 404              403 200 200
! DELETE /v1/namespaces/{namespace}/tables/{table}   401      403 403 204 204           403 404 404              403 204 204
POST /v1/namespaces/{namespace}/tables/{table}/metrics 401    403 204 204 204           404 404 404              204 204 204
! POST /v1/namespaces/{namespace}/tables/{table}/unregister 401 403 403 200 200         403 404 404              403 200 200
! POST /v1/namespaces/{namespace}/tables/{table}/adopt 401    403 403 403 200           403 403 404              403 403 200
GET /v1/namespaces/{namespace}/tables/{table}/partitions 401  403 200 200 200           404 404 404              200 200 200
GET /v1/namespaces/{namespace}/tables/{table}/partition-stats 401 403 200 200 200       404 404 404              200 200 200
POST /v1/namespaces/{namespace}/tables/{table}/plan  401      403 200 200 200           404 404 404              200 200 200
GET /v1/namespaces/{namespace}/tables/{table}/plan/{plan-id} 401 403 404 404 404        404 404 404              404 404 404
DELETE /v1/namespaces/{namespace}/tables/{table}/plan/{plan-id} 401 403 404 404 404     404 404 404              404 404 404
POST /v1/namespaces/{namespace}/tables/{table}/tasks 401      403 404 404 404           404 404 404              404 404 404
GET /v1/namespaces/{namespace}/tables/{table}/credentials 401 403 200 200 200           404 404 404              200 200 200
POST /v1/namespaces/{namespace}/tables/{table}/sign  401      403 409 409 409           404 404 404              409 409 409
POST /v1/namespaces/{namespace}/register             401      403 403 404 404           403 404 404              403 404 404
! POST /v1/tables/rename                             401      403 403 204 204           403 404 404              403 204 204
POST /v1/transactions/commit                         401      403 403 204 204           403 404 404              403 204 204
GET /v1/namespaces/{namespace}/views                 401      403 200 200 200           404 404 404              200 200 200
! POST /v1/namespaces/{namespace}/views              401      403 403 200 200           403 404 404              403 200 200
GET /v1/namespaces/{namespace}/views/{view}          401      403 200 200 200           404 404 404              200 200 200
HEAD /v1/namespaces/{namespace}/views/{view}         401      403 204 204 204           404 404 404              204 204 204
POST /v1/namespaces/{namespace}/views/{view}         401      403 403 200 200           403 404 404              403 200 200
! DELETE /v1/namespaces/{namespace}/views/{view}     401      403 403 204 204           403 404 404              403 204 204
! POST /v1/views/rename                              401      403 403 204 204           403 404 404              403 204 204
POST /v1/namespaces/{namespace}/register-view        401      403 403 404 404           403 404 404              403 404 404
"""  # noqa: E501

_T, _V = '{"namespace": ["$ns"], "name": "t"}', '{"namespace": ["$ns"], "name": "v"}'
_SET = '{"action": "set-properties", "updates": {"a": "1"}}'
_COLUMNS = '{"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "required": false, "type": "long"}]}'
_VERSION = (
    '{"version-id": 1, "timestamp-ms": 1, "schema-id": 0, "summary": {}, "default-namespace": ["$ns"],'
    ' "representations": [{"type": "sql", "sql": "SELECT 1", "dialect": "spark"}]}'
)
_NEW_TABLE = f'{{"name": "new", "schema": {_COLUMNS}}}'
_NEW_VIEW = f'{{"name": "new", "schema": {_COLUMNS}, "view-version": {_VERSION}, "properties": {{}}}}'

BODIES = {
    "POST /v1/oauth/tokens": "grant_type=password",
    "PATCH /v1/config": "{}",
    "POST /v1/compaction/run": "{}",
    "POST /v1/tables/{namespace}/{table}/forget": '{"key": "1"}',
    "POST /v1/tables/{namespace}/{table}/retype": "{}",
    "POST /v1/tiers/move": "{}",
    "POST /v1/tables/{namespace}/{table}/rollback": '{"snapshotId": "1"}',
    "POST /v1/tables/{namespace}/{table}/rows": '{"keys": ["1"]}',
    "POST /v1/quarantine/{namespace}/{table}/replay": "{}",
    "POST /v1/quarantine/{namespace}/{table}/drop": "{}",
    "POST /v1/query": '{"sql": "SELECT 1"}',
    "POST /v1/query/plan": '{"sql": "SELECT 1"}',
    "POST /v1/query/route": '{"sql": "SELECT 1"}',
    "POST /v1/diff": '{"table": "t", "from": 1}',
    "POST /v1/subscriptions/{subscription}/ack": '{"token": "x"}',
    "POST /v1/published": '{"from": 0, "to": 0, "generation": 1}',
    "POST /v1/namespaces": '{"namespace": ["$ns"]}',
    "POST /v1/namespaces/{namespace}/properties": '{"updates": {"a": "1"}}',
    "PATCH /v1/namespaces/{namespace}/properties": '{"updates": {"a": "1"}}',
    "POST /v1/namespaces/{namespace}/tables": _NEW_TABLE,
    "POST /v1/namespaces/{namespace}/tables/{table}": f'{{"requirements": [], "updates": [{_SET}]}}',
    "POST /v1/namespaces/{namespace}/tables/{table}/commits": f'{{"requirements": [], "updates": [{_SET}]}}',
    "POST /v1/namespaces/{namespace}/tables/{table}/metrics": '{"report-type": "scan-report"}',
    "POST /v1/namespaces/{namespace}/tables/{table}/plan": "{}",
    "POST /v1/namespaces/{namespace}/tables/{table}/tasks": '{"plan-task": "x"}',
    "POST /v1/namespaces/{namespace}/tables/{table}/sign": '{"method": "GET", "uri": "http://store/b/k"}',
    "POST /v1/namespaces/{namespace}/register": '{"name": "new", "metadata-location": "$root/$ns/x/metadata/no.json"}',
    "POST /v1/tables/rename": f'{{"source": {_T}, "destination": {{"namespace": ["$ns"], "name": "new"}}}}',
    "POST /v1/transactions/commit": f'{{"table-changes": [{{"identifier": {_T}, "updates": [{_SET}]}}]}}',
    "POST /v1/namespaces/{namespace}/views": _NEW_VIEW,
    "POST /v1/namespaces/{namespace}/views/{view}": f'{{"requirements": [], "updates": [{_SET}]}}',
    "POST /v1/views/rename": f'{{"source": {_V}, "destination": {{"namespace": ["$ns"], "name": "new"}}}}',
    "POST /v1/namespaces/{namespace}/register-view": '{"name": "new", "metadata-location": "$root/$ns/x/no.json"}',
}

MESSAGES = """
message         own        other_source   other_table
connect         status     nack           -
cdc_batch       ack        nack           nack
heartbeat       ack        nack           -
flush_request   ack        ack            -
"""
"""What a connection hears whose token has `ingest`, tenant_a and the sources a-*: as a-1, as b-1, of tenant_b.t."""

SUBSCRIBER_MESSAGES = """
message     own          other_table
subscribe   subscribed   unknown_table
ack         acked        -
"""
"""The same on /v1/subscribe, whose token has `read` and tenant_a."""

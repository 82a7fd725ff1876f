"""The views of INFORMATION_SCHEMA."""

from __future__ import annotations

# Each view is a query over the stored catalogue; {database} is the quoted name of the database asked.
_TABLE = "FROM meta.object o WHERE o.kind = 'table' AND o.body->>'database' = {database}"
_CREATED = "to_timestamp((o.body->>'created_ms')::numeric / 1000.0)"

INFORMATION_VIEWS: dict[str, str] = {
    "DATABASES": (
        "SELECT o.body->>'name' AS \"DATABASE_NAME\", 'ACCOUNTADMIN'::text AS \"DATABASE_OWNER\","
        " CASE WHEN (o.body->>'transient')::boolean THEN 'YES' ELSE 'NO' END AS \"IS_TRANSIENT\","
        f' o.body->>\'comment\' AS "COMMENT", {_CREATED} AS "CREATED"'
        " FROM meta.object o WHERE o.kind = 'database' AND {database} IS NOT NULL"
    ),
    "SCHEMATA": (
        "SELECT o.body->>'database' AS \"CATALOG_NAME\", o.body->>'name' AS \"SCHEMA_NAME\","
        " 'ACCOUNTADMIN'::text AS \"SCHEMA_OWNER\", 'NO'::text AS \"IS_TRANSIENT\","
        f' o.body->>\'comment\' AS "COMMENT", {_CREATED} AS "CREATED"'
        " FROM meta.object o WHERE o.kind = 'schema' AND o.body->>'database' = {database}"
    ),
    "TABLES": (
        "SELECT o.body->>'database' AS \"TABLE_CATALOG\", o.body->>'schema' AS \"TABLE_SCHEMA\","
        " o.body->>'name' AS \"TABLE_NAME\", 'ACCOUNTADMIN'::text AS \"TABLE_OWNER\","
        " CASE o.body->>'kind' WHEN 'VIEW' THEN 'VIEW' ELSE 'BASE TABLE' END AS \"TABLE_TYPE\","
        " CASE WHEN (o.body->>'transient')::boolean THEN 'YES' ELSE 'NO' END AS \"IS_TRANSIENT\","
        " CASE WHEN (o.body->>'hybrid')::boolean THEN 'YES' ELSE 'NO' END AS \"IS_HYBRID\","
        f' o.body->>\'comment\' AS "COMMENT", {_CREATED} AS "CREATED" {_TABLE}'
    ),
    "VIEWS": (
        "SELECT o.body->>'database' AS \"TABLE_CATALOG\", o.body->>'schema' AS \"TABLE_SCHEMA\","
        " o.body->>'name' AS \"TABLE_NAME\", 'ACCOUNTADMIN'::text AS \"TABLE_OWNER\","
        f' o.body->>\'text\' AS "VIEW_DEFINITION", o.body->>\'comment\' AS "COMMENT", {_CREATED} AS "CREATED"'
        f" {_TABLE} AND o.body->>'kind' = 'VIEW'"
    ),
    "COLUMNS": (
        "SELECT o.body->>'database' AS \"TABLE_CATALOG\", o.body->>'schema' AS \"TABLE_SCHEMA\","
        " o.body->>'name' AS \"TABLE_NAME\", c.column_->>'name' AS \"COLUMN_NAME\","
        ' c.position_::numeric AS "ORDINAL_POSITION", c.column_->>\'default\' AS "COLUMN_DEFAULT",'
        " CASE WHEN (c.column_->>'nullable')::boolean THEN 'YES' ELSE 'NO' END AS \"IS_NULLABLE\","
        " CASE c.column_->'type'->>'kind' WHEN 'FIXED' THEN 'NUMBER' WHEN 'REAL' THEN 'FLOAT'"
        " ELSE c.column_->'type'->>'kind' END AS \"DATA_TYPE\","
        " (c.column_->'type'->>'length')::numeric AS \"CHARACTER_MAXIMUM_LENGTH\","
        " CASE c.column_->'type'->>'kind' WHEN 'FIXED' THEN (c.column_->'type'->>'precision')::numeric END"
        ' AS "NUMERIC_PRECISION",'
        " CASE c.column_->'type'->>'kind' WHEN 'FIXED' THEN (c.column_->'type'->>'scale')::numeric END"
        ' AS "NUMERIC_SCALE", c.column_->>\'comment\' AS "COMMENT"'
        " FROM meta.object o, jsonb_array_elements(o.body->'columns') WITH ORDINALITY AS c(column_, position_)"
        " WHERE o.kind = 'table' AND o.body->>'database' = {database}"
    ),
    "INDEXES": (
        "SELECT o.body->>'database' AS \"TABLE_CATALOG\", o.body->>'schema' AS \"TABLE_SCHEMA\","
        " o.body->>'name' AS \"TABLE_NAME\", i.key_->>'name' AS \"NAME\", 'ACTIVE'::text AS \"STATUS\","
        " 'NO'::text AS \"IS_UNIQUE\""
        " FROM meta.object o, jsonb_array_elements(o.body->'indexes') AS i(key_)"
        " WHERE o.kind = 'table' AND o.body->>'database' = {database}"
    ),
}

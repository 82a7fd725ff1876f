"""Statements that are neither queries nor DML: each is found by its first words and run by one function.

registry     registers a command by its first words; finds the command of a statement
objects      databases and schemas; DROP, TRUNCATE and COMMENT; `change_catalog`, which runs DDL
tables       CREATE TABLE, CREATE HYBRID TABLE, with columns, keys and indexes; CREATE VIEW
alter        ALTER TABLE, CREATE INDEX, DROP INDEX
warehouses   CREATE, ALTER and DROP WAREHOUSE
services     jobs of Snowpark Container Services, which are recorded and not run
show         SHOW and DESCRIBE
system       SYSTEM$ functions, context functions, table functions of the server, RESULT_SCAN; USE, ALTER SESSION,
             BEGIN, COMMIT, ROLLBACK
"""

from loadgen.embedded.commands import alter, objects, services, show, system, tables, warehouses

__all__ = ["alter", "objects", "services", "show", "system", "tables", "warehouses"]  # they register their commands

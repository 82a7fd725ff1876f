"""Translates Snowflake SQL to PostgreSQL. Syntax and functions that are not on a list are rejected.

parser     tokenizer and parser, the reader of commands, limits of a text and the budget of its translation
emitter    the walk over the syntax tree; operators, literals, names, binds
calls      casts, functions, paths into semi-structured values
queries    SELECT and set operations
sources    FROM: tables, joins, subqueries, VALUES, table functions; the views of INFORMATION_SCHEMA
dml        INSERT, UPDATE, DELETE, MERGE
planner    plans and their cache, descriptions of results, values of binds
"""

"""Translates Snowflake SQL to PostgreSQL, rejecting what is not on a list.

statement_limits   limits of a text, and the budget of its translation
dialect            tokenizer and parser
token_reader       reads the tokens of commands
emitter            the walk over the syntax tree, and what it collects
operators          operators, literals, names, binds
calls              casts, functions, paths into semi-structured values
queries            SELECT and set operations
sources            FROM: tables, joins, subqueries, VALUES, table functions; the views of INFORMATION_SCHEMA
dml                INSERT, UPDATE, DELETE, MERGE
planner            plans and their cache, descriptions, values of binds
"""

"""Capture: query history → pseudonyms → a folder of statements, which a replay sends again.

history          rows of Snowflake's query history, read backwards in pages, or of a CSV file
pseudonyms       values → values of the same type and shape, keyed and consistent inside one capture
sql_pieces       an SQL text in literals, names, binds and the rest
syntax_tree      the tree of a statement: its role, and how each literal is treated
statement_text   one SQL text → the same text without comments and real values
recorder         rows → files, in bounded memory, resumable
derive           a scenario with weights, rates and fitted parameters
manifest         counts, templates, and the README of a capture
"""

"""Capture: query history → pseudonyms → a folder of statements, which a replay sends again.

history          rows of Snowflake's query history, read backwards in pages, or of a CSV file
pseudonyms       values → values of the same type and shape, keyed and consistent inside one capture
sql_pieces       an SQL text in literals, names, binds and the rest; which of its words are names: all that are no
                 vocabulary
statement_text   one SQL text → the same text without comments and real values; the tree of a statement: its role, and
                 how each literal is treated
recorder         rows → files, in bounded memory, resumable; counts, templates, and the README of a capture
derive           a scenario with weights, rates and fitted parameters
"""

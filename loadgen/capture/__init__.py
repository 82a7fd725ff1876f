"""Capture: query history → pseudonyms → a folder of statements for a replay.

job              one capture from its source to its folder
history          rows of QUERY_HISTORY, read from the newest to the oldest in pages, or rows of a CSV file
pseudonyms       values → values of the same type and shape, by a key, consistent inside one capture
sql_pieces       splits an SQL text into literals, names, binds and the rest; a word that is no keyword is a name
statement_text   one SQL text → the same text without comments and real values; the role of a statement, and the
                 treatment of each literal, from its syntax tree
recorder         rows → files, in bounded memory and resumable; counts, templates, and the README of a capture
derive           derives a scenario with weights, rates and fitted parameters
"""

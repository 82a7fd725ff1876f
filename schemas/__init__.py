"""Data only: control-plane migrations, named SQL queries, the JSON Schema of scenarios, container specifications.

Read through `importlib.resources.files("schemas")`; there is no code here.
"""

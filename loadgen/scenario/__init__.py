"""From a scenario file to a frozen, typed Scenario.

read             entry point: YAML within limits, --set, all steps in order
document         the tree with positions, problems, ${NAME}
value_types      types of values: what may be written, what it becomes, JSON Schema
key_reader       how keys are declared; reading a document by these declarations, and noting its problems
settings         sections that the file and the typed Scenario share
model            the typed Scenario with its load and thresholds; the number of workers that follows from a load
generators file  sections that only the file has; conversion to the typed Scenario; files that a scenario names
checks           rules between keys
check_workload   rules between keys of statements, generators, thresholds, sharding and user sessions
frozen           SCENARIO_CONFIG: writing and reading
experiment       the experiment file: arms of a scenario, and what to compare

`model`, `frozen` and the modules that they import do not import the YAML reader, so that workers start faster.
"""

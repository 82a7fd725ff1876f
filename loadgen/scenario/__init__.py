"""From a scenario file to a frozen, typed Scenario.

read             entry point: YAML within limits, --set, all steps in order; the origin of each value
document         the tree with positions, problems, ${NAME}
keys             how keys are declared: value types, sections, reading a mapping as a section
settings         sections that the file and the typed Scenario share
model            the typed Scenario with its load and thresholds; workers, rates and replay that follow from a load
generators file  sections that only the file has; from the file to the typed Scenario
schema           the JSON Schema for editors
validation       keys and types, every problem at once
checks check_workload check_data   rules between keys
frozen           SCENARIO_CONFIG: written, read, and shown in the keys of the file
experiment       the experiment file: arms of a scenario, and what to compare

`model`, `frozen` and what they import do without the YAML reader: workers start faster.
"""

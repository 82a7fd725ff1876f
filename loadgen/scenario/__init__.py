"""From a scenario file to a frozen, typed Scenario.

read             entry point: all steps in order, and --set; a stored scenario in the keys of its file; the origin of
                 each value
yaml_reader      YAML within limits
document         the tree with positions, problems, ${NAME}
types            value types: parser, limits, JSON Schema
keys             how keys are declared, and how a mapping becomes a section
settings spawner  sections that the file and the typed Scenario share
generators file   sections that only the file has
schema           the JSON Schema for editors
validation       keys and types, every problem at once
checks check_workload check_data check_spawner check_replay   rules between keys
model            the typed Scenario, with its load and thresholds
build            from the file to the typed Scenario
load             workers and rates that follow from a load
replay           the statements and the length of a replay
frozen           SCENARIO_CONFIG, written and read
experiment       the experiment file: arms of a scenario, and what to compare

`model`, `frozen`, `load` and what they import do without the YAML reader: workers start faster.
"""

"""From a scenario file to a frozen, typed Scenario.

reading      document, scalar    YAML in which every value knows its place
             environment         ${NAME} in texts; template: how such texts are stored
             override            --set load.connections=64
             problem             what is wrong, where, and what to do
             read                all steps in order: start here
keys         base, field         what sections and values have in common
             section, load_section, generator, file
             name, sql, service_time, threshold     small languages inside of values
checking     validation          keys and types, every problem at once
             check, check_*      what only shows between keys
result       scenario, build     the typed Scenario, and how it is made
             workers, rates      what follows from it: processes, arrivals
             frozen, codec       SCENARIO_CONFIG, written and read
             as_written          the same in the keys of a scenario file, to show what differs
showing      plan, origin, plan_text     what a run would do, in plain words
             schema              the JSON Schema for editors

`scenario`, `frozen`, `workers` and what they import need no YAML reader: workers start without.
"""

"""From a scenario file to a frozen, typed Scenario.

    document     YAML with the place of every value          problem     what is wrong, and where
    environment  ${NAME} in texts                            override    --set load.connections=64
    field, generator, section, load_section, file            the keys, their types and defaults
    validation   keys and types, every problem at once       check*      what only shows between keys
    scenario     the typed result                            build       file → typed result
    read         all of it, in order                         frozen      SCENARIO_CONFIG, written and read
    plan         what a run would do, in plain words         schema      the JSON Schema for editors

`scenario`, `frozen` and what they import need neither pydantic nor a YAML reader: workers start without them.
"""

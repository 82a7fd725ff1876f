"""Experiments: arms of a scenario, measured in random order, block by block.

job                 one experiment from its file to its report: measures the arms of each block, records the
                    measurements, and stops by the rules
metering            the credits that Snowflake metered, read after the experiment
state               the stored state of an experiment, and the lease of the process that leads it
warehouse_settings  settings of warehouses that arms change: recorded, changed, verified, restored
"""

"""Experiments: arms of a scenario, measured in random order, block by block.

blocks              measures the arms of each block, records what they found, and stops when the rules say so
state               what the control plane knows of an experiment, and the lease of the process that leads it
warehouse_settings  settings of warehouses that arms change: recorded, verified, restored
"""

"""From results to what people and scripts read. Pure: nothing is connected, no file is opened here.

verdict     validity and thresholds
summary     summary.json, the contract
text        the same for people, as plain text
"""

"""Creating the control plane: `loadgen setup` and `loadgen grants`.

installer    what is missing, as a script or executed; the numbered files in schemas/control_plane, applied once each
grants       the least privileges of each role, as GRANT statements; which privileges on which tables a statement
             needs, read from its text
"""

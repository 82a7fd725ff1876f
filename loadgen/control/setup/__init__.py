"""Creating the control plane: `loadgen setup` and `loadgen grants`.

installer    finds what is missing, and creates it or prints it as a script; applies each numbered file in
             schemas/control_plane once
grants       the minimum privileges of each role as GRANT statements; the privileges that a statement needs, read from
             its text
"""

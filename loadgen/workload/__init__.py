"""What a client sends, and when. Pure: nothing here reads a clock, uses a connection, or opens a file.

random_bits   random words from a seed and a key; portable logarithm and power
draw_context  what the values of a parameter depend on: seed, lanes of clients, shards of workers
generators    the n-th value of a parameter, made in chunks, for each kind: keys of a range, sequences, other values
pools         value pools: read, stored in chunks, read back
draw          the mix (smooth weighted round-robin) and the bound parameters of draw k
users         logical users: which session a statement belongs to, what a session remembers
ramp          closed loop: the number of connections at time t
arrivals      open loop: when the i-th statement of a worker is due
replay        recorded statements: their distribution to workers by session, and when each is due

Every value is a function of the scenario's seed and of a number, so a run can be repeated, and any part of it can be
computed alone. Closed loop: the number is k, counted in each lane. Open loop: it is the index i of the worker's
arrival, whichever client executes it. Neither restarts during a run; see `draw`.

The same seed gives the same values on every machine and with every numpy from 2.0 on. This depends on two facts only:
numpy guarantees that the raw words of PCG64 and SeedSequence never change (`random_bits`), and in IEEE 754 arithmetic
+ - * / and the square root have one correct result. Logarithms and powers do not, and numpy's differ between
processors; `random_bits` computes them from the basic operations.
"""

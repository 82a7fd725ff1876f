"""What a client sends, and when. Pure: no clock, no connection, no file is opened here.

random_bits  random words from a seed and a key; portable logarithm and power
generator    the n-th value of a parameter, made in chunks; the clients of a worker and their lanes; shards
generators   the generator of each kind of parameter: keys of a range, sequences, and other values
pools        value pools: read, stored in chunks, read back
draw         the mix (smooth weighted round-robin) and the bound parameters of draw k
users        logical users: which session a statement belongs to, what a session remembers
schedule     closed loop: the number of connections at time t; open loop: when the i-th statement of a worker is due
replay       recorded statements: dealt to workers by session, and when each is due

Everything is a function of the scenario's seed and of a number, so a run can be repeated, and any part of it computed
without what came before. Closed loop: the number is k, counted in each lane. Open loop: it is the index i of the
worker's arrival, whichever client executes it. Neither restarts while the run lasts; see `draw`.

The same seed gives the same values on any machine and with any numpy from 2.0 on. That rests on two things only:
numpy's promise that the raw words of PCG64 and SeedSequence never change (`random_bits`), and IEEE 754 arithmetic, in
which + - * / and the square root have one correct result. Logarithms and powers have not, and numpy's differ between
processors; `random_bits` computes them from the basic operations.
"""

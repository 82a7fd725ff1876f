"""What a client sends, and when. Pure: no clock, no connection, no file is opened here.

    split       one total over many workers; the clients of a worker and their lanes; shards
    mix         which statement the k-th draw is: smooth weighted round-robin, exact per cycle
    generators  one per parameter: its n-th value (keys, numbers, texts, pool values)
    draw        mix and generators together: statement and bound parameters of draw k
    session_book, memory   user sessions: who has one, whose turn it is, what is remembered
    pools       value pools: read, stored in chunks, read back
    pacing      closed loop: think time, and how many connections at time t
    arrivals    open loop: when the i-th statement of a worker is due, window by window

Everything is a function of the scenario's seed and of a number, so a run can be repeated, and any part of it computed
without what came before. Closed loop: the number is k, counted in each lane. Open loop: it is the index i of the
worker's arrival, whichever client executes it. Neither begins anew while the run lasts; see `draw`.

The same seed gives the same values on any machine and with any numpy from 2.0 on. That rests on two things only:
numpy's promise that the raw words of PCG64 and SeedSequence never change (`bits`), and IEEE 754 arithmetic, in which
+ - * / and the square root have one correct result. Logarithms and powers are not among those, and numpy's differ
between processors; ours are made of the former (`portable`).
"""

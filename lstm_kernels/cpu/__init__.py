"""How the CPU's rungs run: vector code traced from the cells (`simd`, `tiles`), the
passes over a mini-batch, the threads that share them, and the trials that decide how
they are shared.
"""

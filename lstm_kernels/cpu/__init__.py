"""How the CPU's rungs run: vector code traced from the cells (`simd`, `tiles`), the
passes over a mini-batch, the threads that share them, and the model that decides how
they are shared.
"""

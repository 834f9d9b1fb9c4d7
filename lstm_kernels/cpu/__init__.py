"""How versions on the CPU run: vector code traced from the cells (`simd`,
`micro_kernels`), the stages of a pass on arrays, the scheduler and the threads that run
it, and the autotuner that decides how they share it.
"""

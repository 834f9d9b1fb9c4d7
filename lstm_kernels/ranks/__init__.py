"""Several processes (MPI): one model trained or run by the ranks of a job.

A program of ranks is a function of their World, started by `mpiexec -n 2 python
program.py`:

    def program(world):
        history = lstm_kernels.train(Parallel(params, world), dataset, 10, 64, 0.1)

    lstm_kernels.ranks.world.main(program)
"""

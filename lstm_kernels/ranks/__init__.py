"""Several processes (MPI): one model trained or run by the ranks of a job.

A program of ranks is a function of their World, started by `mpiexec -n 2 python
program.py`:

    def program(world):
        history = lstm_kernels.train(Parallel(params, world), dataset, 10, 64, 0.1)

    lstm_kernels.ranks.world.main(program)

All ranks make the same calls with the same arguments. What must be the same is compared
before anything is computed (`World.agreed`): where it is not, or is wrong on one rank,
every rank raises. Memory lasts as long as an array or a Pass that points to it. Every
wait ends with a signal, and the end of a rank or of mpiexec ends the job.
"""

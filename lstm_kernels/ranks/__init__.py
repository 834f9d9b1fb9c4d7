"""Several processes (MPI): one model trained or run by the ranks of a job.

A program of ranks is a function of their World, started by `mpiexec -n 2 python
program.py`:

    import lstm_kernels as lk
    from lstm_kernels.ranks import parallel, world

    def program(ranks):
        params = lk.Params.init(1, 32, output_size=1)
        dataset = lk.data.windows(series, 12)
        lk.train(parallel.Parallel(params, ranks), dataset, 10, 64, 0.1)

    world.main(program)

As root Open MPI wants OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1.
All ranks make the same calls with the same arguments. What must be the same is compared
before it is used (`World.agreed`): where it is not, or is wrong on one rank, every rank
raises. Every wait ends with a signal, and the end of a rank or of mpiexec ends the job.
"""

"""Several processes (MPI): one model trained or run by the ranks of a job."""

"""One checkpoint of all ranks: rank 0 writes the file, every rank reads it by
itself.
"""

from ..files import read_npz, write_npz
from ..training import FORMAT, Checkpoint


class SharedCheckpoint(Checkpoint):
    """A Checkpoint of a Parallel: what each stage's first replica has, in one file.

    It goes on only on as many ranks, with the same stages and in the same way, as it
    was written on: else the bits would differ.
    """

    def __init__(self, path, model):
        super().__init__(path)
        self._model = model
        self.run = {"ranks": model.world.size, "stages": model.stages}
        self.run |= {"micro_batches": model.micro_batches, "order": model.order}
        self.run |= {"loops": model.loops}
        self.run |= {
            "version": model.version,
            "loss": model.loss,
            "overlap": model.apart,
        }

    def exists(self):
        return self._model.world.comm.bcast(super().exists() if self._first else None)

    @property
    def _first(self):
        return self._model.world.rank == 0

    def save(self, header, named):
        """Gather the arrays of every stage, and write them, on rank 0."""
        prefix = f"stage{self._model.stage}"
        named = {f"{prefix}.{name}": a for name, a in named.items()}
        every = self._model.world.comm.gather(named if self._model.replica == 0 else {})
        if self._first:
            write_npz(
                self.path, header, {n: a for part in every for n, a in part.items()}
            )
        self._model.world.comm.Barrier()  # nobody is an epoch ahead of the file

    def load(self, build):
        """build(header, arrays of this rank's stage), of what `save` wrote."""
        prefix = f"stage{self._model.stage}."

        def of_stage(header, named):
            saved = {k: header["run"].get(k) for k in self.run}
            if saved != self.run:
                raise ValueError(f"is of another run, got {saved}, want {self.run}")
            mine = {
                n.removeprefix(prefix): a
                for n, a in named.items()
                if n.startswith(prefix)
            }
            return build(header, mine)

        return read_npz(self.path, FORMAT, of_stage, name="checkpoint")

"""`numba-newton`: the seams of `numba-chunks` by Newton's method.

What changed from `numba-chunks`: a sweep carries beside each chunk how its end changes
with its start, the tangents. So the seams are corrected to first order, through all
chunks at once: the error squares from sweep to sweep, also where the network never
forgets. Chunks of one step are the method of Lim et al. (2024, DEER), one chunk is the
sequence step by step; in between this is multiple shooting. Bounded by the tangents: 2
H of them for an LSTM, each a step's product; two where W is diagonal, as each unit has
its own. Backward is linear: the same tangents, transposed, are exact after one
correction. A correction rounds, so seams hold to some roundings, not to the bit; the
sizes alone decide the cut, and a call repeats its bits.
"""

from ..errors import check_type
from .numba_chunks import NumbaChunks


class NumbaNewton(NumbaChunks):
    """A network that cuts one sequence into chunks, joined by Newton's method.

    warm_start: begin with the seams that the last call of the same length found, as
    for the same sequence after a training step. The rest is as of `NumbaChunks`.
    """

    name = "numba-newton"
    newton = True
    roundings = 8

    def __init__(self, params, threads=None, *, warm_start=False, **choices):
        super().__init__(params, threads, **choices)
        check_type("warm_start", warm_start, bool, "True or False")
        self._chosen["warm_start"] = self._made_with["warm_start"] = warm_start

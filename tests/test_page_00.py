"""Page 0, the summary, on synthetic rows of page 3 and synthetic closing sections."""

from pages import Page
from test_page_03 import made

from lstm_kernels.cores import cores
from lstm_report.closings import PAGES

PAGE = Page("00")
CLOSINGS = {
    project: (page, [[f"hope of {project}", f"{k}x (1x to 9x)", "partly"]])
    for k, (project, page) in enumerate(PAGES.items(), start=2)
}


def with_closings(gain=None):
    """gain: of the last version over NumPy, by process."""
    rows = made()
    if gain is not None:
        ladder_rows = rows["measure_ladder"]
        part = ladder_rows["part"] == "versions"
        fused = ladder_rows[part & (ladder_rows["case"] == "numba-fused")]
        of_numpy = part & (ladder_rows["case"] == "numpy")
        by = fused["process"].map(dict(enumerate(gain))).to_numpy()
        ladder_rows.loc[of_numpy, "seconds"] = by * fused["seconds"].to_numpy()
    return rows | {"closings": CLOSINGS}


EDGES = [(0, float(cores()), with_closings)]
test_text, test_edge, test_all = PAGE.approved(with_closings(), EDGES)

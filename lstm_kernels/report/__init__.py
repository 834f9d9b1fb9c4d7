"""What is told: the notebooks' helper, figures and tables. Needs the extra `report`."""

from ..errors import extra

with extra("report"):
    from .notebook import Notebook
    from .plots import COLOURS, style

__all__ = ["COLOURS", "Notebook", "style"]

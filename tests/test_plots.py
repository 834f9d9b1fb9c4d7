"""Labels of lines."""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest

from lstm_report.figures import plots


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_labels_of_lines_that_end_together_keep_apart_and_in_order(scale):
    figure, ax = plt.subplots(figsize=(8, 4))
    ends = [3.0, 3.01, 3.02, 900.0]
    ax.set(yscale=scale, xlim=(0, 2), ylim=(1, 1000))
    plots.label_lines(ax, [(1, y, f"{y:g}", "black") for y in ends], fontsize=10)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert [text.get_text() for text in ax.texts] == ["3", "3.01", "3.02", "900"]
    assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))
    middles = [(box.y0 + box.y1) / 2 for box in boxes]
    at = ax.transData.transform([(1, y) for y in ends])[:, 1]
    assert np.mean(middles[:3]) == pytest.approx(np.mean(at[:3]), abs=3)
    # Alone, so it stays where its line ends
    assert middles[3] == pytest.approx(at[3], abs=3)
    plt.close(figure)

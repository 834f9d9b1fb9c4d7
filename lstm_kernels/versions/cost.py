"""cost"""
import os
def plan_threads(tiles, sizes, T, B, training, threads):
    mode = os.environ.get("LKMODE", "auto")
    if mode == "auto":
        mode = "samples" if B >= 2*threads and tiles.hidden <= 128 else "blocks"
    if mode == "one" or threads == 1:
        return 1, 1, max(1, min(T, 64 // B)), 1
    if mode == "samples":
        return threads, threads, 1, 1
    return threads, 0, max(1, min(T, 64 // B)), max(1, min(B // 6, -(-2 * threads // (tiles.padded // tiles.WIDE))))

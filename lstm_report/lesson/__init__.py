"""The lesson: exercises, their checks, and what a learner sees of them."""

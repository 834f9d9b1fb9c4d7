"""Studies beside the ladder: five optimisations as switches of one code, low-rank weights."""

"""A module for each page: how it measures, what follows from the rows, how it draws.

The page holds what is to be read: the workload, the call, the sentence it claims and
its threshold. `page_NN.py` holds functions alone. `measure_...` runs in fresh
processes; every other function turns rows into numbers, figures or tables.
"""

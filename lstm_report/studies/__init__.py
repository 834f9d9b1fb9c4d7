"""Plain code that a page studies: strings and their buckets, weights of low rank,
rules of forecasting.
"""

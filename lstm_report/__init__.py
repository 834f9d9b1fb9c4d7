"""The report: what the notebooks measure, draw and say of the package
`lstm_kernels`.
"""

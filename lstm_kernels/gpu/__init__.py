"""How the GPU's rungs run: the device, its functions, and the kernels."""

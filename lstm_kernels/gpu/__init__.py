"""How the GPU's versions run: the device, its functions, and the kernels."""

"""Kernels of numba-cuda executed on a CPU, with every access to memory checked."""

from .arrays import unwritten
from .check import Fault, check
from .machine import ORDERS, why_unavailable

__all__ = ["ORDERS", "Fault", "check", "unwritten", "why_unavailable"]

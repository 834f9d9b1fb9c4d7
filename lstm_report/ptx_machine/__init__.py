"""Kernels of numba-cuda executed on a CPU, with every access to memory checked."""

from .arrays import unwritten
from .check import Fault, check, why_unavailable
from .machine import ORDERS

__all__ = ["ORDERS", "Fault", "check", "unwritten", "why_unavailable"]

"""Number formats that torch's type stubs don't know."""

from __future__ import annotations

from typing import cast

import torch

INT4 = cast(torch.dtype, torch.__dict__["int4"])
"""Only a name for the format of four-bit weights (ops.linear.quantised.Groups): torch has no tensors of it."""

QUANTISED = (torch.int8, INT4)
"""Formats whose products are sums of integers."""

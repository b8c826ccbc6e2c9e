# SPDX-License-Identifier: Apache-2.0
"""fsdp_policies.py - what fully_shard is told of precision and of where shards lie.

Plain values with the names and defaults of PyTorch's FSDP2. What they mean for numbers is the C
engine's: shards, optimizer state and sums are fp32 whatever a policy says.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """param_dtype: of the full parameters, what is gathered and computed with; reduce_dtype: of the
    gradients that are reduced (None: as param_dtype); output_dtype: floating outputs of a module
    are cast to it; cast_forward_inputs: its floating inputs are cast to param_dtype.

    apply_grad_on_fp32_main_grad: the gradient goes to param.main_grad in fp32, where those of
    several steps add up until it is set to None; param.grad stays None."""

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True
    apply_grad_on_fp32_main_grad: bool = False


@dataclass(frozen=True)
class OffloadPolicy:
    """Shards stay where they are."""


@dataclass(frozen=True)
class CPUOffloadPolicy(OffloadPolicy):
    """Shards and optimizer state in host memory, where those of CPU ranks are already."""

    pin_memory: bool = True

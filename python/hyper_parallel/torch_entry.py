# SPDX-License-Identifier: Apache-2.0
"""torch_entry.py - what PyTorch calls when it is imported (its entry points "torch.backends").

It makes the name "hyper" known to torch.distributed and loads nothing: the C library comes with the
first process group of that backend, so a program that has none does not notice this package.
"""


def register():
    """Make init_process_group("hyper") possible; again is harmless."""
    import torch.distributed as dist

    if dist.is_available():
        dist.Backend.register_backend("hyper", _create, extended_api=True, devices=["cpu"])


def _create(options, backend_options=None):
    from hyper_parallel.torch.backend import create

    return create(options, backend_options)

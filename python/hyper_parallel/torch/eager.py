# SPDX-License-Identifier: Apache-2.0
"""eager.py - what torch.compile does not look into: calls of the C library, and what is around.

A graph that is being compiled ends before such a function and begins again behind it; the function
runs as ever. Outside of torch.compile nothing is added, and its machinery is not imported.
"""

import functools

import torch


def eager(function):
    """The function, left alone by torch.compile."""
    apart = torch._disable_dynamo(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        return (apart if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return call

# SPDX-License-Identifier: Apache-2.0
"""hyper_parallel.torch - the front end for PyTorch."""

# SPDX-License-Identifier: Apache-2.0
"""hyper_parallel.mindspore - symmetric memory and fully_shard for MindSpore, on CPU ranks.

Names load what they need when they are first asked for. MindSpore runs in PyNative mode: the
library is called in the middle of cells, which a compiled graph cannot do.
"""

import importlib

_NAMES = {
    "CPUOffloadPolicy": "hyper_parallel.mindspore.fsdp",
    "HSDPCell": "hyper_parallel.mindspore.fsdp",
    "MixedPrecisionPolicy": "hyper_parallel.mindspore.fsdp",
    "OffloadPolicy": "hyper_parallel.mindspore.fsdp",
    "clip_grad_norm_": "hyper_parallel.mindspore.state",
    "fully_shard": "hyper_parallel.mindspore.fsdp",
    "get_model_state_dict": "hyper_parallel.mindspore.state",
    "hsdp_sync_stream": "hyper_parallel.mindspore.fsdp",
    "init_device_mesh": "hyper_parallel.mesh",
    "set_model_state_dict": "hyper_parallel.mindspore.state",
    "symm": "hyper_parallel.mindspore.symm",
    "split_group": "hyper_parallel.mindspore.groups",
}
_MODULES = {"symm"}

__all__ = sorted(_NAMES)


def __getattr__(name):
    if name not in _NAMES:
        raise AttributeError(f"module 'hyper_parallel.mindspore' has no attribute {name!r}")
    module = importlib.import_module(_NAMES[name])
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_NAMES})

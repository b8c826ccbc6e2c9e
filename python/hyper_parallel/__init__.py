# SPDX-License-Identifier: Apache-2.0
"""hyper_parallel - fully sharded training and symmetric memory on the C library HyperParallel.

Names load what they need when they are first asked for: whoever uses PyTorch never imports
MindSpore, and the other way round. `hyper_parallel.fully_shard`, `hyper_parallel.symm` and the
rest are PyTorch's; MindSpore's stand in `hyper_parallel.mindspore`.
"""

import importlib

# Public name: the module that has it.
_NAMES = {
    "HyperParallelError": "hyper_parallel._c",
    "world": "hyper_parallel.world",
    "torch": "hyper_parallel.torch",
    "mindspore": "hyper_parallel.mindspore",
    "collectives": "hyper_parallel.collectives",
    "symm": "hyper_parallel.torch.symm",
    "fully_shard": "hyper_parallel.torch.fsdp",
    "HSDPModule": "hyper_parallel.torch.fsdp",
    "MixedPrecisionPolicy": "hyper_parallel.torch.fsdp",
    "OffloadPolicy": "hyper_parallel.torch.fsdp",
    "CPUOffloadPolicy": "hyper_parallel.torch.fsdp",
    "hsdp_sync_stream": "hyper_parallel.torch.fsdp",
    "clip_grad_norm_": "hyper_parallel.torch.clip",
    "get_model_state_dict": "hyper_parallel.torch.state_dict",
    "set_model_state_dict": "hyper_parallel.torch.state_dict",
    "init_device_mesh": "hyper_parallel.torch.mesh",
}
_MODULES = {"world", "torch", "mindspore", "collectives", "symm"}

__all__ = list(_NAMES)


def __getattr__(name):
    if name not in _NAMES:
        raise AttributeError(f"module 'hyper_parallel' has no attribute {name!r}")
    module = importlib.import_module(_NAMES[name])
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_NAMES})

# SPDX-License-Identifier: Apache-2.0
"""mesh.py - torch's meshes, and the package's own, as what fully_shard works over.

Where torch.distributed is initialized a mesh is torch's DeviceMesh; a program that hprun started
without it has the DeviceMesh of hyper_parallel.mesh, which knows the same few names. Both become
one hp_mesh of the library, made once for each shape.
"""

import torch.distributed as dist

from hyper_parallel import mesh as meshes
from hyper_parallel.torch.groups import world_of_torch


def is_torch_mesh(mesh):
    """Is it a DeviceMesh of torch.distributed?"""
    if not dist.is_available():
        return False
    from torch.distributed.device_mesh import DeviceMesh

    return isinstance(mesh, DeviceMesh)


def init_device_mesh(device_type, mesh_shape, *, mesh_dim_names=None):
    """A mesh over all ranks: torch's DeviceMesh where torch.distributed is initialized, else the
    package's. ValueError: another device than "cpu", or sizes that are not all the ranks."""
    if device_type == "cpu" and dist.is_available() and dist.is_initialized():
        from torch.distributed.device_mesh import init_device_mesh as of_torch

        return of_torch(device_type, tuple(mesh_shape), mesh_dim_names=mesh_dim_names)
    return meshes.init_device_mesh(device_type, mesh_shape, mesh_dim_names=mesh_dim_names)


def _sizes(mesh):
    if mesh is None:
        return (world_of_torch().size,)
    if isinstance(mesh, meshes.DeviceMesh):
        return mesh.shape
    if not is_torch_mesh(mesh):
        raise TypeError("expected mesh to be a DeviceMesh, torch's or hyper_parallel's, or None, "
                        f"given {type(mesh).__name__}")
    size = world_of_torch().size
    ranks = mesh.mesh.flatten().tolist()
    if ranks != list(range(size)):
        raise ValueError(f"expected a mesh over all {size} ranks in order, given ranks {ranks}")
    return tuple(mesh.mesh.shape)


def check_mesh(mesh):
    """The sizes of a mesh for fully_shard. ValueError unless it has one or two dimensions."""
    sizes = _sizes(mesh)
    if len(sizes) not in (1, 2):
        raise ValueError("expected a mesh of 1 dimension (shard) or 2 (replicate, shard), given "
                         f"{len(sizes)}")
    return sizes


def mesh_handle(mesh):
    """The hp_mesh * of a mesh, made at the first call for its sizes, which is collective."""
    sizes = _sizes(mesh)  # which makes the world, where there is none
    return meshes.handle_of(sizes)

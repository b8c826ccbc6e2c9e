# SPDX-License-Identifier: Apache-2.0
"""mesh.py - the ranks as a grid: one dimension is FSDP, two are HSDP (replicate, shard).

Where torch.distributed is initialized a mesh is torch's DeviceMesh; a program that hprun started
without it has Mesh, which knows the same few names. Both become one hp_mesh of the library, made
once for each shape. A mesh covers all ranks in order: the last dimension varies fastest.
"""

import math

import torch.distributed as dist

from hyper_parallel import world as worlds
from hyper_parallel._c import check, ffi, lib
from hyper_parallel.torch.groups import world_of_torch

_handles = {}


def is_torch_mesh(mesh):
    """Is it a DeviceMesh of torch.distributed?"""
    if not dist.is_available():
        return False
    from torch.distributed.device_mesh import DeviceMesh

    return isinstance(mesh, DeviceMesh)


class Mesh:
    """All ranks of the world as a grid of shape `shape`, one name for each dimension or none."""

    def __init__(self, shape, mesh_dim_names=None):
        self.shape = tuple(int(n) for n in shape)
        self.ndim = len(self.shape)
        self.mesh_dim_names = tuple(mesh_dim_names) if mesh_dim_names else None
        size = world_of_torch().size
        if not self.shape or min(self.shape) < 1 or math.prod(self.shape) != size:
            raise ValueError(f"expected sizes whose product is the number of ranks, {size}, given "
                             f"{self.shape}")
        if self.mesh_dim_names and len(set(self.mesh_dim_names)) != self.ndim:
            raise ValueError(f"expected {self.ndim} different names, given {self.mesh_dim_names}")

    def __eq__(self, other):
        return isinstance(other, Mesh) and (self.shape, self.mesh_dim_names) == (
            other.shape, other.mesh_dim_names)

    def __hash__(self):
        return hash((self.shape, self.mesh_dim_names))

    def __repr__(self):
        return f"Mesh({self.shape}, {self.mesh_dim_names})"

    def _dim(self, dim):
        if isinstance(dim, str):
            if dim not in (self.mesh_dim_names or ()):
                raise KeyError(f"expected one of {self.mesh_dim_names}, given {dim!r}")
            return self.mesh_dim_names.index(dim)
        if dim is None and self.ndim == 1:
            return 0
        if dim is None or not 0 <= dim < self.ndim:
            raise ValueError(f"expected a dimension in [0, {self.ndim}), given {dim}")
        return dim

    def size(self, dim=None):
        """Ranks of all dimensions, or of one."""
        return math.prod(self.shape) if dim is None else self.shape[self._dim(dim)]

    def get_local_rank(self, dim=None):
        """This rank's place along a dimension (number or name)."""
        return lib.hp_mesh_coordinate(mesh_handle(self), self._dim(dim))

    def get_rank(self):
        """This rank in the world."""
        return world_of_torch().rank

    def get_group(self, dim=None):
        """The ranks along a dimension as a Group of hyper_parallel.world."""
        group = lib.hp_mesh_group(mesh_handle(self), self._dim(dim))
        return worlds.Group(world_of_torch(), group, is_owned=False)


def init_device_mesh(device_type, mesh_shape, *, mesh_dim_names=None):
    """A mesh over all ranks: torch's DeviceMesh where torch.distributed is initialized, else a
    Mesh. ValueError: another device than "cpu", or sizes that are not all the ranks."""
    if device_type != "cpu":
        raise ValueError(f'expected device_type "cpu", given {device_type!r}')
    if dist.is_available() and dist.is_initialized():
        from torch.distributed.device_mesh import init_device_mesh as of_torch

        return of_torch(device_type, tuple(mesh_shape), mesh_dim_names=mesh_dim_names)
    return Mesh(mesh_shape, mesh_dim_names)


def _sizes(mesh):
    if mesh is None:
        return (world_of_torch().size,)
    if isinstance(mesh, Mesh):
        return mesh.shape
    if not is_torch_mesh(mesh):
        raise TypeError("expected mesh to be a DeviceMesh, a hyper_parallel Mesh or None, given "
                        f"{type(mesh).__name__}")
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


def _close_handles():
    for handle in _handles.values():
        lib.hp_mesh_destroy(handle)
    _handles.clear()


def mesh_handle(mesh):
    """The hp_mesh * of a mesh, made at the first call for its sizes, which is collective."""
    sizes = _sizes(mesh)
    if sizes not in _handles:
        out = ffi.new("hp_mesh **")
        check(lib.hp_mesh_create(world_of_torch().handle, ffi.new("int[]", sizes), len(sizes), out))
        if not _handles:
            worlds.before_shutdown(_close_handles)
        _handles[sizes] = out[0]
    return _handles[sizes]

# SPDX-License-Identifier: Apache-2.0
"""mesh.py - the ranks as a grid, whatever the framework: one dimension is FSDP, two are HSDP
(replicate, shard).

A mesh covers all ranks in order, the last dimension varying fastest. It is one hp_mesh of the
library, made once for each shape, when it is first needed: that is collective over all ranks.
"""

import math

from hyper_parallel import world as worlds
from hyper_parallel._c import check, ffi, lib

_handles = {}  # by shape
_groups = {}  # by handle


class DeviceMesh:
    """All ranks as a grid of `shape`, a name for each dimension or none."""

    def __init__(self, shape, mesh_dim_names=None):
        self.shape = tuple(int(n) for n in shape)
        self.ndim = len(self.shape)
        self.mesh_dim_names = tuple(mesh_dim_names) if mesh_dim_names else None
        size = worlds.world().size
        if not self.shape or min(self.shape) < 1 or math.prod(self.shape) != size:
            raise ValueError(f"expected sizes whose product is the number of ranks, {size}, given "
                             f"{self.shape}")
        if self.mesh_dim_names and len(set(self.mesh_dim_names)) != self.ndim:
            raise ValueError(f"expected {self.ndim} different names, given {self.mesh_dim_names}")

    def __eq__(self, other):
        return isinstance(other, DeviceMesh) and (self.shape, self.mesh_dim_names) == (
            other.shape, other.mesh_dim_names)

    def __hash__(self):
        return hash((self.shape, self.mesh_dim_names))

    def __repr__(self):
        return f"DeviceMesh({self.shape}, {self.mesh_dim_names})"

    def _dim(self, dim):
        if dim in (self.mesh_dim_names or ()):
            return self.mesh_dim_names.index(dim)
        if dim is None and self.ndim == 1:
            return 0
        if not isinstance(dim, int) or not 0 <= dim < self.ndim:
            raise ValueError(f"expected a dimension in [0, {self.ndim}) or one of "
                             f"{self.mesh_dim_names}, given {dim!r}")
        return dim

    def size(self, dim=None):
        """Ranks of all dimensions, or of one."""
        return math.prod(self.shape) if dim is None else self.shape[self._dim(dim)]

    def get_local_rank(self, dim=None):
        """This rank's place along a dimension (number or name)."""
        return lib.hp_mesh_coordinate(self.handle, self._dim(dim))

    def get_rank(self):
        """This rank in the world."""
        return worlds.world().rank

    def get_group(self, dim=None):
        """The ranks along a dimension, as a Group of hyper_parallel.world."""
        handle = lib.hp_mesh_group(self.handle, self._dim(dim))
        if handle not in _groups:
            _groups[handle] = worlds.Group(worlds.world(), handle, is_owned=False)
        return _groups[handle]

    @property
    def handle(self):
        """The hp_mesh *."""
        return handle_of(self.shape)


def handle_of(shape):
    """The hp_mesh * of all ranks in that shape, made at its first use, which is collective."""
    if shape not in _handles:
        out = ffi.new("hp_mesh **")
        check(lib.hp_mesh_create(worlds.world().handle, ffi.new("int[]", shape), len(shape), out))
        if not _handles:
            worlds.before_shutdown(_close)
        _handles[shape] = out[0]
    return _handles[shape]


def _close():
    _groups.clear()
    while _handles:
        lib.hp_mesh_destroy(_handles.popitem()[1])


def init_device_mesh(device_type, mesh_shape, *, mesh_dim_names=None):
    """A DeviceMesh over all ranks. ValueError: another device than "cpu", or sizes that do not
    multiply to their number."""
    if device_type != "cpu":
        raise ValueError(f'expected device_type "cpu", given {device_type!r}')
    return DeviceMesh(mesh_shape, mesh_dim_names)

# SPDX-License-Identifier: Apache-2.0
"""groups.py - the ranks of a torch ProcessGroup as a group of the library.

The same group object serves both: a call that takes group= takes a torch ProcessGroup, a Group of
hyper_parallel.world, or None for all ranks. A rank in torch's default group is the same rank in our
world. Where the program has no world yet it is made in torch's own store.
"""

import torch.distributed as dist

from hyper_parallel import world as worlds


def world_of_torch():
    """The World; over torch.distributed's store when that is initialized and the world is not."""
    if dist.is_available() and dist.is_initialized():
        here = dist.group.WORLD
        if worlds.is_initialized():
            return worlds.world(rank=here.rank(), size=here.size())
        store = dist.PrefixStore("hyper_parallel", dist.distributed_c10d._get_default_store())
        return worlds.world(store, here.rank(), here.size())
    return worlds.world()


def group_of_torch(group=None):
    """The Group of a ProcessGroup (cached by its ranks; its first use is collective over them), of
    a Group (itself), or of None (all ranks). TypeError for anything else."""
    if isinstance(group, worlds.Group):
        return group
    if group is None:
        return world_of_torch().group
    if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
        if dist.is_available() and group is dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError("expected a group that this rank is in, given the placeholder that "
                             "torch hands to other ranks")
        raise TypeError("expected a torch.distributed ProcessGroup, a hyper_parallel Group or "
                        f"None, given {type(group).__name__}")
    return world_of_torch().group_of(dist.get_process_group_ranks(group))

# SPDX-License-Identifier: Apache-2.0
"""collectives.py - groups of ranks by lists, under the name that the original has for it.

Where torch.distributed is initialized a group is torch's ProcessGroup, which every call of this
package that takes group= takes; else it is a Group of hyper_parallel.world, which MindSpore's calls
take too. No framework is imported for it: one that nobody has imported has no group yet.
"""

import sys

from hyper_parallel import world as worlds


def _torch():
    """torch.distributed where it is initialized, else None."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist and dist.is_available() and dist.is_initialized() else None


def _check_lists(split_ranks, size):
    if not isinstance(split_ranks, (list, tuple)) or not split_ranks:
        raise ValueError(f"expected split_ranks to be lists of ranks, given {split_ranks!r}")
    seen = set()
    for ranks in split_ranks:
        for rank in ranks:
            if not 0 <= rank < size or rank in seen:
                raise ValueError(f"expected ranks in [0, {size}), each once at most, given "
                                 f"{split_ranks}")
            seen.add(rank)


def split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None):
    """Split a group: a list of lists of its ranks (in the parent), one for each new group; returns
    the one that this rank is in, None when it is in none. Collective over the parent.

    parent_pg None: all ranks; a name, as hyper_parallel.mindspore has them: that module's
    split_group. timeout, pg_options, group_desc: torch's, where torch has the group. ValueError: a
    rank out of range or in two lists."""
    if isinstance(parent_pg, str):
        from hyper_parallel.mindspore.groups import split_group as by_name
        return by_name(parent_pg, split_ranks)
    dist = _torch()
    if dist:
        parent = parent_pg or dist.group.WORLD
        _check_lists(split_ranks, parent.size())
        world_ranks = dist.get_process_group_ranks(parent)
        mine = None
        for ranks in split_ranks:
            group = dist.new_group([world_ranks[r] for r in ranks], timeout=timeout,
                                   pg_options=pg_options, group_desc=group_desc,
                                   use_local_synchronization=parent_pg is not None)
            if parent.rank() in ranks:
                mine = group
        return mine
    parent = parent_pg or worlds.world().group
    _check_lists(split_ranks, parent.size)
    for color, ranks in enumerate(split_ranks):
        if parent.rank in ranks:
            return parent.split(color, list(ranks).index(parent.rank))
    return parent.split(-1)

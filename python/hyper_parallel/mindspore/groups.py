# SPDX-License-Identifier: Apache-2.0
"""groups.py - groups of ranks as MindSpore's programs name them: by a string.

A call that takes group= takes a name that split_group gave, the name of a group of
mindspore.communication, a Group of hyper_parallel.world, or None for all ranks. The same ranks are
one group, whatever names it; its first use is collective over them.
"""

from mindspore import communication

from hyper_parallel import world as worlds

_named = {}  # name: world ranks


def group_of(group=None):
    """The Group of a name, of a Group (itself), or of None (all ranks). ValueError for a name that
    nobody has given; TypeError for anything else."""
    if isinstance(group, worlds.Group):
        return group
    if group is None:
        return worlds.group_of()
    if not isinstance(group, str):
        raise TypeError("expected a group's name, a hyper_parallel Group or None, given "
                        f"{type(group).__name__}")
    return worlds.group_of(_ranks_of(group))


def _ranks_of(name):
    if name in _named:
        return _named[name]
    try:
        return tuple(communication.get_process_group_ranks(name))
    except Exception as error:
        known = ", ".join(_named) or "none"
        raise ValueError(f"expected the name of a group of split_group ({known}) or of "
                         f"mindspore.communication, given {name!r}") from error


def split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None):
    """The name of the group of split_ranks (lists of ranks of the parent, each rank in at most one)
    that this rank is in, such as "2-0_1". Collective over each list's ranks.

    parent_pg: whose ranks the lists number; None: all ranks. timeout, pg_options, group_desc: of
    other backends, not looked at. ValueError: no lists, a rank twice or outside the parent, or
    this rank in none of them."""
    parent = group_of(parent_pg)
    if not split_ranks:
        raise ValueError(f"expected split_ranks to be lists of ranks, given {split_ranks!r}")
    flat = [rank for ranks in split_ranks for rank in ranks]
    if len(set(flat)) != len(flat) or not all(0 <= rank < parent.size for rank in flat):
        raise ValueError(f"expected split_ranks with each rank below {parent.size} at most once, "
                         f"given {split_ranks}")
    for ranks in split_ranks:
        if parent.rank in ranks:
            return _name(tuple(parent.ranks[rank] for rank in ranks))
    raise ValueError(f"expected rank {parent.rank} in one of split_ranks, given {split_ranks}")


def _name(ranks):
    name = f"{len(ranks)}-{'_'.join(map(str, ranks))}"
    _named[name] = ranks
    worlds.group_of(ranks)
    return name

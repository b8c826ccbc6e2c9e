# SPDX-License-Identifier: Apache-2.0
"""engine.py - fused matrix products as a front end calls them, without a framework.

The products run on one engine of this process ("onednn" where the plug-in can be loaded, else the
library's own loops; HYPER_PARALLEL_MATMUL says which), opened at the first product.
What always holds: the engine is closed before the world is.
"""

import os

from hyper_parallel import world as worlds
from hyper_parallel._c import NULL, check, ffi, lib, new
from hyper_parallel.collective import pointer

_engine = None


def _close():
    global _engine
    engine, _engine = _engine, None
    lib.hp_matmul_close(engine)


def _n_threads():
    """What OMP_NUM_THREADS says, of the outermost level if it lists several; else 1."""
    outermost = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return max(1, int(outermost)) if outermost.isdecimal() else 1


def _opened():
    global _engine
    if _engine is None:
        out = ffi.new("hp_matmul **")
        check(lib.hp_matmul_open(NULL, _n_threads(), out))
        worlds.before_shutdown(_close)
        _engine = out[0]
    return _engine


def product(what, group, rows, n, k, dtype, a, lda, b, ldb, c, ldc, **fields):
    """One fused product, blocking. what: "all_gather_matmul", "matmul_reduce_scatter" or
    "all_gather_weight_grad"; rows: of each member; a, b, c: addresses of row-major matrices whose
    rows are ld* elements apart; fields: others of hp_fused_args."""
    counts = ffi.new("int64_t[]", list(rows))
    check(getattr(lib, "hp_" + what)(new(
        "hp_fused_args", group=group.handle, matmul=_opened(), rows=counts, n=n, k=k, dtype=dtype,
        out_dtype=dtype, a=pointer(a), b=pointer(b), c=pointer(c), lda=lda, ldb=ldb, ldc=ldc,
        **fields)))

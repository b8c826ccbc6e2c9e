# SPDX-License-Identifier: Apache-2.0
"""collective.py - the library's collectives as a front end calls them, without a framework.

A call is a struct (hp_coll_call), made from addresses, counts in elements and names; the same
struct describes the forward call to its backward, so nothing here knows how a gradient flows.
What always holds: arguments that the library would refuse are refused by the library, in its words.
"""

from hyper_parallel._c import NULL, check, ffi, lib, new

REDUCES = {"sum": lib.HP_SUM, "avg": lib.HP_AVG, "max": lib.HP_MAX, "min": lib.HP_MIN}
WIRES = {None: lib.HP_WIRE_DEFAULT, "fp16": lib.HP_WIRE_FP16, "float16": lib.HP_WIRE_FP16,
         "bf16": lib.HP_WIRE_BF16, "bfloat16": lib.HP_WIRE_BF16,
         "fp8": lib.HP_WIRE_FP8_E4M3, "fp8_e4m3": lib.HP_WIRE_FP8_E4M3,
         "float8_e4m3fn": lib.HP_WIRE_FP8_E4M3, "fp8_e5m2": lib.HP_WIRE_FP8_E5M2,
         "float8_e5m2": lib.HP_WIRE_FP8_E5M2, "full": lib.HP_WIRE_FULL}


def reduce_of(op):
    """The hp_reduce of "sum", "avg", "max", "min". ValueError listing them."""
    name = op.lower() if isinstance(op, str) else op
    if name not in REDUCES:
        raise ValueError(f"expected op to be one of {', '.join(REDUCES)}, given {op!r}")
    return REDUCES[name]


def wire_of(name):
    """The hp_wire of None (what SYMMETRIC_MEMORY_LOW_PRECISION_DTYPE says), "fp16", "bf16",
    "fp8_e4m3", "fp8_e5m2", "full", or a framework's names of these. ValueError listing them."""
    key = name.lower().rsplit(".", 1)[-1] if isinstance(name, str) else name
    if key not in WIRES:
        raise ValueError("expected low_precision_dtype to be None or one of "
                         f"{', '.join(k for k in WIRES if k)}, given {name!r}")
    return WIRES[key]


def pointer(address):
    """An address as cffi's void *; None: NULL."""
    return NULL if address is None else ffi.cast("void *", address)


class Call:
    """One collective over a Group, described once and run, and then its backward run, with these
    arguments. what: "all_gather", ...; in_, out: addresses; the others as in hp_coll_call."""

    def __init__(self, what, group, in_=None, out=None, **fields):
        self.group = group
        self._arrays = {name: ffi.new("uint64_t[]", list(value)) for name, value in fields.items()
                        if name.endswith(("_counts", "_offsets"))}
        self.struct = new("hp_coll_call", what=getattr(lib, "HP_" + what.upper()),
                          **{**fields, **self._arrays})
        self.place(in_, out)

    def place(self, in_, out):
        """The addresses of input and output, where they have changed or were not known."""
        setattr(self.struct, "in", pointer(in_))
        self.struct.out = pointer(out)

    def run(self):
        """Run it, blocking. HyperParallelError naming ranks and what differs between them."""
        self.struct.group = self.group.handle
        check(lib.hp_coll_run(self.struct))

    def backward(self, out_grad, in_grad, mode="identity"):
        """Run its backward, blocking, on all ranks that ran it. out_grad, in_grad: addresses, None
        where the call has none; mode, of an all_reduce: "identity" or "sum"."""
        self.struct.group = self.group.handle
        check(lib.hp_coll_backward(new(
            "hp_coll_backward_call", forward=self.struct, mode=mode_of(mode),
            out_grad=pointer(out_grad), in_grad=pointer(in_grad))))


def mode_of(name):
    """The hp_backward_mode of "identity" or "sum"."""
    if name not in ("identity", "sum"):
        raise ValueError(f"expected backward to be 'identity' or 'sum', given {name!r}")
    return lib.HP_BACKWARD_IDENTITY if name == "identity" else lib.HP_BACKWARD_SUM

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a token file of a text, or text of ids. docs/token-files.md describes the file.

usage: make_tokens.py TOKENIZER TEXT OUT
       make_tokens.py TOKENIZER --decode ID...

TOKENIZER is a directory with a tokenizer.json, as Hugging Face writes it (needs the package
`tokenizers`), or `bytes`, whose ids are the bytes (needs nothing).
"""
import array
import itertools
import os
import struct
import sys


class Bytes:
    """The smallest tokenizer, with the functions that are used of a large one."""

    def encode(self, text, add_special_tokens):
        return type("Encoding", (), {"ids": list(text.encode())})

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")

    def get_vocab(self):
        return {chr(byte): byte for byte in range(256)}


def load(name):
    if name == "bytes":
        return Bytes()
    try:
        from tokenizers import Tokenizer
    except ImportError:
        sys.exit("make_tokens: expected the Python package tokenizers (pip install tokenizers)")
    path = os.path.join(name, "tokenizer.json")
    if not os.path.exists(path):
        sys.exit(f"make_tokens: expected {path}, which is not there")
    return Tokenizer.from_file(path)


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8")
    except OSError as error:
        sys.exit(f"make_tokens: expected a text, given {path}: {error.strerror}")
    except UnicodeDecodeError as error:
        sys.exit(f"make_tokens: expected {path} to be UTF-8, given byte "
                 f"0x{error.object[error.start]:02x} at offset {error.start}")


def write(path, ids, vocab_size):
    width, code = (2, "H") if vocab_size <= 1 << 16 else (4, "I")
    body = array.array(code, ids)
    if body.itemsize != width:
        sys.exit(f"make_tokens: expected numbers of {width} bytes, this machine has {body.itemsize}")
    if sys.byteorder == "big":
        body.byteswap()
    with open(path, "wb") as file:
        file.write(struct.pack("<8sIIQI36x", b"HPTOKENS", 1, width, len(ids), vocab_size))
        body.tofile(file)


def decode(tokenizer, ids):
    """Ids that the tokenizer lacks, which it would drop or refuse, are shown as <497>."""
    known = set(tokenizer.get_vocab().values())
    runs = itertools.groupby(ids, known.__contains__)
    return "".join(tokenizer.decode(list(run)) if is_known else "".join(f"<{id}>" for id in run)
                   for is_known, run in runs)


def main(arguments):
    if len(arguments) < 3 or (arguments[1] != "--decode" and len(arguments) != 3):
        sys.exit(__doc__.split("\n\n")[1])
    tokenizer = load(arguments[0])
    if arguments[1] == "--decode":
        print(decode(tokenizer, [int(word) for a in arguments[2:] for word in a.split()]))
        return
    ids = tokenizer.encode(read(arguments[1]), add_special_tokens=False).ids
    # Not how many there are: ids may be left out.
    vocab_size = 1 + max(tokenizer.get_vocab().values())
    write(arguments[2], ids, vocab_size)
    print(f"{arguments[2]}: {len(ids)} tokens of a vocabulary of {vocab_size}")


main(sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""test_docs.py - the programs in docs/python.md run as the page says.

Each block that begins with ```python is a whole program; ```python ranks=2 is started by hprun with
so many ranks. A program that ends with 0 and says what the comment on its last print says is right.
"""

import os
import re
from importlib.util import find_spec

import pytest
import ranks

PAGE = os.path.join(ranks.ROOT, "docs", "python.md")


def programs():
    """(ranks, first line's number, text) of each block."""
    with open(PAGE) as page:
        text = page.read()
    for found in re.finditer(r"^```python(?: ranks=(\d+))?\n(.*?)^```$", text, re.M | re.S):
        line = text.count("\n", 0, found.start()) + 2
        yield pytest.param(int(found[1] or 1), found[2], id=f"line{line}")


@pytest.mark.parametrize("n, program", list(programs()))
def test_program(n, program, tmp_path):
    for framework in ("torch", "mindspore"):
        if re.search(rf"^(import|from) {framework}\b", program, re.M):
            if not find_spec(framework):  # importing takes seconds
                pytest.skip(f"{framework} is not installed")
    path = tmp_path / "program.py"
    path.write_text(program)
    result = ranks.run(n, path)
    assert result.status == 0, result.output
    for said in re.findall(r"^ *print\(.*#> (.*)$", program, re.M):
        assert said in result.output, result.output

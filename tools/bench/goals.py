# SPDX-License-Identifier: Apache-2.0
#
# goals.py - which call a row is, and the least ratio that we want of it.
#
# A key names a table: op, in place or not, ranks, memory ("symm" or "private"). Goals are those of
# goals.json, which has a rule for each table but for ordinary memory, where one ratio holds.
import collections
import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))

Key = collections.namedtuple("Key", "op in_place ranks memory")


def load_json(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return json.load(file)


def applies(rule, key):
    return (rule["op"] == key.op and key.ranks in rule["ranks"] and
            rule.get("in_place", False) == key.in_place)


def goal_of(goals, key, n):
    """None: there is none."""
    if key.memory == "private":
        return goals["private_ratio"]
    for rule in goals["ratios"]:
        for least, most, goal in rule["goals"] if applies(rule, key) else []:
            if least <= n and (most is None or n <= most):
                return goal
    return None

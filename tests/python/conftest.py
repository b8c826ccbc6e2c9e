# SPDX-License-Identifier: Apache-2.0
"""conftest.py - the counts of a run, said as cmocka says them: tools/run_tests.sh adds them up.

Tests marked full are for `make python-test` alone; ctest, and so CI, runs the others.
"""


def pytest_configure(config):
    config.addinivalue_line("markers", "full: a case more of what a quick test covers too")


def pytest_terminal_summary(terminalreporter):
    stats = terminalreporter.stats
    failed = len(stats.get("failed", [])) + len(stats.get("error", []))
    terminalreporter.write_line(f"[  PASSED  ] {len(stats.get('passed', []))} test(s).")
    for skipped in stats.get("skipped", []):
        reason = skipped.longrepr[-1] if isinstance(skipped.longrepr, tuple) else skipped.longrepr
        terminalreporter.write_line(f"{reason}")
        terminalreporter.write_line(f"[  SKIPPED ] {skipped.nodeid.split('::')[-1]}")
    if stats.get("skipped"):
        terminalreporter.write_line(f"[  SKIPPED ] {len(stats['skipped'])} test(s)")
    if failed:
        terminalreporter.write_line(f"[  FAILED  ] {failed} test(s)")

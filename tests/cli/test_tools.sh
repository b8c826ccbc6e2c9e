#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The tools that judge others notice what is wrong: each is given something damaged.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# refuses WANTED COMMAND...: the command fails and says WANTED.
refuses() {
    local wanted=$1 said
    shift
    if said=$("$@" 2>&1); then
        echo "expected a failure of: $*"
        exit 1
    fi
    [[ $said == *"$wanted"* ]] || { echo "expected '$wanted' of: $*, given '$said'"; exit 1; }
}

# trace EVENTS: a trace of one lane.
trace() {
    printf '{"traceEvents":[%s]}' "$1" >"$out/trace.json"
}
begin='{"ph":"B","name":"a","pid":0,"tid":0,"ts":1}'
end='{"ph":"E","name":"a","pid":0,"tid":0,"ts":2}'
check=(tools/check_trace.sh "$out/trace.json")

trace "$begin,$end"
"${check[@]}" >/dev/null
trace "$begin"
refuses "never ended" "${check[@]}"
trace "$end"
refuses "an end without its begin" "${check[@]}"
trace "$begin,${end/2/0}"
refuses "time runs backwards" "${check[@]}"
trace "$begin,${end/\"a\"/\"b\"}"
refuses "ends a" "${check[@]}"
trace ""
refuses "no spans" "${check[@]}"
trace "$begin,$end,"
refuses "not a well-formed trace" "${check[@]}"

refuses "given 'nonsense'" tools/setup.sh nonsense

# Elsewhere than on Debian the compiler has to be there, and Python's packages are still installed.
mkdir -p "$out/bin" "$out/tree/tools"
cp tools/setup.sh "$out/tree/tools"
for tool in bash cat dirname; do
    ln -s "$(type -P $tool)" "$out/bin"
done
elsewhere=(env PATH="$out/bin" "$out/bin/bash" "$out/tree/tools/setup.sh" -n)
refuses "libcmocka-dev" "${elsewhere[@]}" test
for tool in cc cmake ninja; do
    ln -s "$(type -P true)" "$out/bin/$tool"
done
"${elsewhere[@]}" test
refuses "build/python: torch==" "${elsewhere[@]}" python
refuses "oneccl-cpu==" "${elsewhere[@]}" peers

# What counts is the machine's own architecture, whatever is installed for others beside it.
mkdir -p "$out/debian"
printf '#!/bin/sh\necho amd64\n' >"$out/debian/dpkg"
# shellcheck disable=SC2016 # for the script
printf '#!/bin/sh\nprintf "%%b" "$ROWS"\n' >"$out/debian/dpkg-query"
ln -s "$(type -P true)" "$out/debian/apt-get"
chmod +x "$out/debian/dpkg" "$out/debian/dpkg-query"
debian=(env PATH="$out/debian:$PATH")
"${debian[@]}" ROWS='amd64 installed\narm64 installed\n' tools/setup.sh -n test
"${debian[@]}" ROWS='all installed\n' tools/setup.sh -n test
refuses "libcmocka-dev" "${debian[@]}" ROWS='arm64 installed\n' tools/setup.sh -n test
refuses "libcmocka-dev" "${debian[@]}" ROWS='amd64 config-files\n' tools/setup.sh -n test

# A file that is laid out otherwise fails the step, and only such a file.
if command -v clang-format-14 >/dev/null; then
    cp tools/lint.sh "$out/tree/tools"
    cp .clang-format "$out/tree"
    git init -q "$out/tree"
    printf 'int x;\n' >"$out/tree/laid.c"
    "$out/tree/tools/lint.sh" "$out/lint" format >/dev/null
    printf 'int  y;\n' >"$out/tree/loose.c"
    refuses $'loose.c\nexpected the layout' "$out/tree/tools/lint.sh" "$out/lint" format
fi

# Ids that are left out count; what is no text is named. The tokenizer is one of two words.
cat >"$out/tokenizers.py" <<'END'
class Tokenizer:
    from_file = staticmethod(lambda path: Tokenizer())
    encode = lambda self, text, add_special_tokens: type("Encoding", (), {"ids": [0, 70000]})
    decode = lambda self, ids: "".join({0: "a", 70000: "b"}.get(id, "") for id in ids)
    get_vocab = lambda self: {"a": 0, "b": 70000}
    get_vocab_size = lambda self: 2
END
touch "$out/tokenizer.json"
make_tokens=(env PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$out" tools/make_tokens.py)
if command -v python3 >/dev/null; then
    echo ab >"$out/text"
    said=$("${make_tokens[@]}" "$out" "$out/text" "$out/tokens")
    [[ $said == *": 2 tokens of a vocabulary of 70001" ]] || { echo "unexpected: $said"; exit 1; }
    [ "$(stat -c %s "$out/tokens")" = 72 ] || { echo "expected two ids of 4 bytes"; exit 1; }
    said=$("${make_tokens[@]}" "$out" --decode "0 497 498" 70000)
    [ "$said" = 'a<497><498>b' ] || { echo "expected the ids that no token has, given '$said'"; exit 1; }
    said=$("${make_tokens[@]}" bytes --decode 206 177 497 -1)
    [ "$said" = 'α<497><-1>' ] || { echo "expected bytes, and ids that are none, given '$said'"; exit 1; }
    printf 'ab\377' >"$out/text"
    refuses "expected $out/text to be UTF-8, given byte 0xff at offset 2" \
        "${make_tokens[@]}" bytes "$out/text" "$out/tokens"
    refuses "No such file" "${make_tokens[@]}" bytes "$out/nowhere" "$out/tokens"
fi

# What was trained is never thrown away: it is moved, or it goes on. The launcher tells what it is
# given; the line that is shown can be pasted.
mkdir -p "$out/runs/bin"
cp tools/train.sh "$out/tree/tools"
printf '#!/bin/sh\n' >"$out/tree/tools/build.sh"
printf '#!/bin/sh\nprintf "<%%s>" "$@"; echo\n' >"$out/runs/bin/hprun"
chmod +x "$out/tree/tools/build.sh" "$out/runs/bin/hprun"
train() { # NAME OPTION...: a run that leaves a file of this name
    local name=$1
    shift
    said=$("$out/tree/tools/train.sh" "$out/runs" "$@")
    touch "$out/runs/train/$name"
    given=${said##*$'\n'}
    shown=$(grep -F -- --mesh <<<"$said" | head -n 1)
    [ "$(eval "${shown#== }")" = "$given" ] || { echo "expected a line to paste, given $shown"; exit 1; }
}
are_there() { # NAME...: below runs/
    local name
    for name; do
        [ -e "$out/runs/$name" ] || { echo "expected $name"; exit 1; }
    done
}
train first --sample 'In the "beginning"'
train again --resume "$out/runs/train/checkpoint"
train once_more --resume="$out/runs/train/checkpoint"
are_there train/first train/again train/once_more
train second
are_there train/second train.old/first
train third
are_there train/third train.old/second
if [ -e "$out/runs/train.old/first" ]; then
    echo "expected one older run"
    exit 1
fi

# Cases are counted, not programs; one that dies in the middle is a failure of its own.
refuses "No tests were found" tools/run_tests.sh "$out"
cat >"$out/CTestTestfile.cmake" <<'END'
add_test(passes true)
add_test(skips sh -c "echo nobody is there; exit 77")
set_tests_properties(skips PROPERTIES SKIP_RETURN_CODE 77)
add_test(cases printf "[  PASSED  ] 3 test(s).\n[  SKIPPED ] 1 test(s), listed below:\n[  SKIPPED ] one\n")
END
said=$(tools/run_tests.sh "$out")
[[ $said == *"skipped: skips: nobody is there"* ]] || { echo "expected the reason: $said"; exit 1; }
[[ $said == *$'\n4 passed, 0 failed, 2 skipped' ]] || { echo "unexpected count: $said"; exit 1; }
cat >>"$out/CTestTestfile.cmake" <<'END'
add_test(fails printf "[  PASSED  ] 1 test(s).\n[  FAILED  ] 2 test(s), listed below:\n")
set_tests_properties(fails PROPERTIES WILL_FAIL ON)
add_test(dies sh -c "kill -KILL $$")
add_test(is_missing /nonexistent)
END
refuses $'\n5 passed, 4 failed, 2 skipped' tools/run_tests.sh "$out"


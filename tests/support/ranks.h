/* SPDX-License-Identifier: Apache-2.0
 *
 * support/ranks.h - run one body as n ranks, as threads or as processes, inside a cmocka test.
 *
 * Threads share one mapping of every heap, so sanitizers and a debugger see all; processes are the
 * real thing. A rank that fails ends its body there and is declared dead, so that its peers get
 * HP_ERR_PEER instead of waiting. The test fails when any rank failed, or when the deadline passes:
 * then what each rank was waiting for is printed.
 */
#ifndef SUPPORT_RANKS_H
#define SUPPORT_RANKS_H

#include "world/world.h"

typedef enum ranks_kind { RANKS_THREADS, RANKS_PROCESSES } ranks_kind;
typedef void (*ranks_body)(hp_world *world, void *argument);

/* Fails the calling cmocka test when a rank fails. The world is created and destroyed around body.
 * With processes, `argument` is each rank's own copy; with HP_TEST_THREADS_ONLY in the environment
 * they are left out. */
void ranks_run(int n, ranks_kind kind, ranks_body body, void *argument);
/* As threads of which each `per_node` share memory; messages go between them: see hpi_hub_split. */
void ranks_run_nodes(int n, int per_node, ranks_body body, void *argument);
/* The same, where a failure is what is tested: the number of ranks that failed, and the text of the
 * first failure ("" when none). */
int ranks_try(int n, ranks_kind kind, ranks_body body, void *argument, char *out_text, size_t size);
int ranks_try_nodes(int n, int per_node, ranks_body body, void *argument, char *out_text,
                    size_t size);
/* Of every later run of this program; 60,000 ms at first. */
void ranks_set_deadline_ms(uint64_t deadline_ms);

/* In a rank, any thread of body's own: end the body unless the condition holds / the status is not
 * negative. */
#define RANK_CHECK(condition)                                                                      \
    ((condition) ? (void)0 : ranks_fail(__FILE__, __LINE__, #condition, 0))
#define RANK_OK(call)                                                                              \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            ranks_fail(__FILE__, __LINE__, #call, 1);                                              \
    } while (0)
/* The call fails with exactly this status. */
#define RANK_FAILS(call, expected)                                                                 \
    do {                                                                                           \
        const hp_status rank_status_ = (call);                                                     \
        if (rank_status_ != (expected))                                                            \
            ranks_fail_status(__FILE__, __LINE__, #call, rank_status_, (expected));                \
    } while (0)
/* End this rank's body without failure; its world is declared dead, as if it had been killed. */
_Noreturn void ranks_die(void);

_Noreturn void ranks_fail(const char *file, int line, const char *what, int has_record);
_Noreturn void ranks_fail_status(const char *file, int line, const char *what, hp_status status,
                                 hp_status expected);

#endif

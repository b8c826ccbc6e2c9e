/* SPDX-License-Identifier: Apache-2.0
 *
 * stream/virtual/virtual.h - virtual time, for this folder alone: costs, lists ready to run, the
 * clock.
 *
 * The clock runs the lists of any number of ranks from event to event. A rank has a lane for each
 * stream; on a lane operations run one after the other, each when its waits have happened. A
 * collective moves when all members of its group have come to it, and is done on all of them at
 * once, so drained is done. HP_EXECUTOR_VIRTUAL is a clock with one rank, whose list grows while it
 * runs; hp_simulate is one with all ranks. All times are whole nanoseconds: the same everywhere.
 */
#ifndef HPI_VIRTUAL_H
#define HPI_VIRTUAL_H

#include "../executor.h"

enum { HPI_NO_OP = UINT32_MAX };

/* ---- cost.c: what an operation takes -------------------------------------------------------- */

typedef struct hpi_costs {
    const hp_cost_model *model; /* NULL: nothing takes any time */
    uint32_t *links, n_links;   /* those of the model, 0 apart, each once */
} hpi_costs;

typedef struct hpi_cost {
    uint64_t fixed_ns;  /* first, whatever else runs */
    uint64_t moving_ns; /* then, alone on the link */
    uint32_t link;      /* 0: its own; else 1 + its place in hpi_costs.links */
} hpi_cost;

/* Errors: ARGUMENT, for a model that does not know so many kinds or has a cost that is none. */
hp_status hpi_costs_create(const hp_cost_model *model, uint32_t n_kinds, hpi_costs *out_costs);
void hpi_costs_destroy(hpi_costs *costs);
/* Is its cost known, and a time that can be added up? Errors: ARGUMENT. */
hp_status hpi_costs_check(const hpi_costs *costs, const hp_op *op);
hpi_cost hpi_cost_of(const hpi_costs *costs, const hp_op *op);

/* ---- list.c: a list, ready to run ----------------------------------------------------------- */

typedef struct hpi_program {
    const hp_op *ops;
    uint32_t n;
    uint32_t *next; /* [n] the operation after it on its stream */
    uint32_t *turn; /* [n] its place on its stream, from 1: done when so many are */
    /* [n] the begin or end of compute that its rank comes through before it gets there: nobody
     * submits an operation before that */
    uint32_t *gate;
    uint32_t first[HP_N_STREAMS], last[HP_N_STREAMS], count[HP_N_STREAMS];
    uint32_t last_gate;
} hpi_program;

/* Room for n operations. */
hp_status hpi_program_create(uint32_t n, hpi_program *out_program);
void hpi_program_destroy(hpi_program *program);
void hpi_program_clear(hpi_program *program);
/* Take in operations up to n of `ops`, which were checked. */
void hpi_program_extend(hpi_program *program, const hp_op *ops, uint32_t n, const hp_kind *kinds);

/* ---- clock.c -------------------------------------------------------------------------------- */

typedef enum hpi_lane_state {
    HPI_LANE_IDLE = 0, /* its head, if it has one, waits for others of its rank */
    HPI_LANE_DELAYED,  /* by a rule */
    HPI_LANE_MEETING,  /* until the other members have come */
    HPI_LANE_FIXED,    /* the part that nothing slows down */
    HPI_LANE_MOVING    /* on a link that others may use too */
} hpi_lane_state;

typedef struct hpi_lane {
    hpi_lane_state state;
    uint32_t head; /* runs, or is next; HPI_NO_OP: none */
    uint32_t last; /* done last; HPI_NO_OP: none in this step */
    uint32_t n_done;
    uint64_t begin_ns;
    uint32_t heap_at; /* 1 + place in the heap; 0: nothing is due */
    uint64_t due_ns;
    /* while it moves; what moves is led by one lane, that of the member that came last */
    uint32_t leader, link;
    uint64_t left; /* of the leader: what is still to be moved, in SHARES of a ns */
    uint64_t since_ns;
    uint32_t n_sharing;
    uint64_t stamp;
} hpi_lane;

typedef struct hpi_virtual_rank {
    const hpi_program *program;
    const hpi_delay *delay;
    uint64_t n_earlier; /* operations of the steps before */
    uint32_t step;
    hpi_lane lanes[HP_N_STREAMS];
    /* What compute waits for when it has come to the end of its list: this, or everything. */
    uint32_t awaited;
    bool is_draining;
    uint32_t still_on; /* compute stands still, waiting for it; HPI_NO_OP: it does not */
    uint64_t still_since_ns;
} hpi_virtual_rank;

typedef struct hpi_clock_calls {
    hp_status (*begin)(void *owner, uint32_t rank, const hp_op *op);
    void (*done)(void *owner, uint32_t rank, const hp_op *op, uint64_t begin_ns, uint64_t end_ns);
    /* Compute stood still, waiting for operation `id`. */
    void (*stood_still)(void *owner, uint32_t rank, uint32_t id, uint64_t begin_ns,
                        uint64_t end_ns);
} hpi_clock_calls;

/* Who meets whom; all NULL: there is one rank, alone in all of its groups. */
typedef struct hpi_meetings {
    uint32_t *group_of; /* [n_comms][n_ranks]; row 0, of local operations: everybody alone */
    uint32_t *starts;   /* [n_groups + 1] places in `members` */
    uint32_t *members;  /* ranks, ascending in each group */
    uint64_t *bases;    /* [n_steps][n_groups] the first meeting of a group in a step */
    uint32_t *n_come;   /* members that have come to each meeting */
    uint32_t n_groups;
} hpi_meetings;

/* meetings.c: those of a checked job. What was made is destroyed by the caller, after a failure
 * too. */
hp_status hpi_meetings_create(const hp_job *job, hpi_meetings *out_meetings);
void hpi_meetings_destroy(hpi_meetings *meetings);

typedef struct hpi_clock {
    uint64_t now_ns;
    uint32_t n_ranks, n_steps;
    const hpi_program *const *programs; /* [n_steps][n_ranks]; NULL: ranks stay in their step */
    hpi_virtual_rank *ranks;
    hpi_meetings meetings;
    const hpi_costs *costs;
    uint32_t *n_on_link; /* [n_ranks][n_links] what moves there now */
    uint32_t *heap, n_heap;
    uint64_t stamp;
    const hpi_clock_calls *calls;
    void *owner;
} hpi_clock;

/* Takes memory for ranks, heap and links; the caller sets the rest before. */
hp_status hpi_clock_create(hpi_clock *clock);
void hpi_clock_destroy(hpi_clock *clock);
/* Put a rank before the first operation of a program. */
void hpi_clock_load(hpi_clock *clock, uint32_t rank, const hpi_program *program);
/* The rank's program has grown, or what its compute waits for is another: let it go on. */
hp_status hpi_clock_wake(hpi_clock *clock, uint32_t rank);
/* Let the next thing happen; false: nothing is going to. */
bool hpi_clock_can_advance(const hpi_clock *clock);
hp_status hpi_clock_advance(hpi_clock *clock);
bool hpi_clock_is_done(const hpi_clock *clock, uint32_t rank, uint32_t id);
/* Everything in the rank's program is done. */
bool hpi_clock_is_through(const hpi_clock *clock, uint32_t rank);

/* For share.c. */
const uint32_t *hpi_clock_members(const hpi_clock *clock, uint32_t slot, uint32_t *out_n);
/* The lane of `rank` that takes part in what `slot` leads; NULL when its list is not in order. */
hpi_lane *hpi_clock_partner(hpi_clock *clock, uint32_t slot, uint32_t rank);
hpi_lane *hpi_clock_lane(hpi_clock *clock, uint32_t slot);
void hpi_clock_due(hpi_clock *clock, uint32_t slot, uint64_t due_ns);

/* ---- share.c: links ------------------------------------------------------------------------- */

/* What `slot` leads begins to move, or is over, on its link. */
void hpi_share_begin(hpi_clock *clock, uint32_t slot, const hpi_cost *cost);
void hpi_share_end(hpi_clock *clock, uint32_t slot);

#endif
